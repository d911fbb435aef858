#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "../json_fields.h"
#include "sftrun/spec/arch_spec.h"
#include "whole_model.h"

/// What the readers of towers share.
namespace sftrun::spec {

/// `vision_config` over the defaults of its class in transformers; a null in the file counts as missing.
class TowerConfig {
 public:
  TowerConfig(const JsonFields& config, const char* defaults);
  TowerConfig(const TowerConfig&) = delete;
  TowerConfig& operator=(const TowerConfig&) = delete;
  const JsonFields& operator*() const { return fields_; }
  const JsonFields* operator->() const { return &fields_; }

 private:
  nlohmann::json merged_;
  JsonFields fields_;
};

/// `vision_config.model_type`.
std::string tower_type(const JsonFields& config, const std::string& otherwise);

/// A size of at least 1.
int64_t tower_size(const JsonFields& tower, const char* key);
/// The side of a square of `area`, the value of `key`. @throws DataError naming the key
int64_t exact_side(const JsonFields& fields, const char* key, int64_t area);
/// A size that is given as a number or as the two equal sides of a square.
int64_t square_side(const JsonFields& tower, const char* key);
TowerActivation tower_activation(const JsonFields& tower, const char* key);
/// Refuses keys that are not 0, as dropout, or not false.
void refuse_dropout(const JsonFields& tower, std::initializer_list<const char*> keys);
void require_rgb(const JsonFields& tower, const char* key);
/// The base of rotary positions in rows and columns. @throws DataError for scaled ones
double axial_theta(const JsonFields& tower, double otherwise);
/// Heads of hidden_size / num_heads channels.
void set_heads(VisionSpec& vision, int64_t num_heads, const JsonFields& tower);
/// @throws DataError unless the tower's rotary positions divide a head into four equal parts
void require_quarters(const VisionSpec& vision, const JsonFields& tower);

/// Sets the layer whose output is used.
/// @return `vision_feature_layer`: layers are numbered from 1, or from -1 for the last one
int64_t read_feature_layer(const JsonFields& config, int64_t otherwise, VisionSpec& vision);
/// Sets whether the class token's row is dropped, `vision_feature_select_strategy`.
void read_selection(const JsonFields& config, const char* otherwise, VisionSpec& vision);
void require_exact_gelu(const JsonFields& config);

TowerLinear tower_linear(std::string module, int64_t in, int64_t out, bool bias);
TowerNorm tower_norm(TowerNormKind kind, std::string module, int64_t size, double eps);

/// Linear, exact GELU, linear: below "model.multi_modal_projector.".
void add_two_linears(VisionSpec& vision, int64_t in, int64_t out, bool bias);

/// The towers whose modules are named as CLIP's: SigLIP, CLIP and Idefics 3. Reads sizes and names below `prefix`.
void read_clip_names(const JsonFields& tower, const std::string& prefix, VisionSpec& vision);

// ---- Towers that several models have, by their `vision_config`

void read_siglip(const JsonFields& config, VisionSpec& vision);
void read_clip(const JsonFields& config, VisionSpec& vision);
void read_pixtral(const JsonFields& config, VisionSpec& vision);

// ---- Names in files

/// Of models with `model.language_model.`, `model.vision_tower.` and `model.multi_modal_projector.`: those of transformers before 4.52,
/// of some files of 5.10 to 5.23, and without the head.
std::vector<Rename> llava_renames();
/// Of the text model in these.
std::vector<Rename> language_model_renames();

}  // namespace sftrun::spec
