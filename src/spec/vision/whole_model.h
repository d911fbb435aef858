#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "../json_fields.h"
#include "sftrun/spec/arch_spec.h"

/// Models that also take images: their config.json holds those of a text model and of a tower. Each family describes itself in a file
/// beside this one.
namespace sftrun::spec {

/// A configuration that describes only the text model of a larger model, in the keys of another family.
struct TextPart {
  std::string_view model_type;  ///< of `text_config`: "qwen2_5_vl_text"
  std::string_view family;      ///< `Family::model_type`
  /// Defaults of transformers' configuration class that differ from those of the family.
  const char* defaults = "{}";
  /// M-RoPE: the default of `mrope_section`; empty: one position a token.
  std::vector<int64_t> sections = {};
  bool sections_alternate = false;
  /// Sets what the family leaves open. Called after the configuration was read.
  void (*adjust)(ArchSpec& arch) = nullptr;
};

/// Names in files that begin with `from` begin with `to` in transformers' model.
struct Rename {
  std::string_view from, to;
};

struct WholeModel {
  std::string_view model_type;   ///< "gemma3"
  std::string_view model_class;  ///< "Gemma3ForConditionalGeneration"
  /// `TextPart::model_type` or `Family::model_type` of the text model: always, or if `text_config` does not say it.
  std::string_view text_type;
  bool text_type_is_open = false;
  /// Older files have the keys of the text model beside `vision_config`.
  bool may_be_flat = false;
  /// Keys that this model's class hands to any text model's, as defaults.
  const char* text_defaults = "{}";
  bool is_tied = false;           ///< default of `tie_word_embeddings`
  bool text_config_ties = false;  ///< `text_config` may tie what the whole model leaves untied
  std::string_view text_prefix = "model.language_model.";
  bool may_lack_vision = false;  ///< `vision_config` may be null
  int64_t image_token_id = -1;   ///< default
  /// In this order, each where a name begins with it.
  std::vector<Rename> (*renames)() = nullptr;
  /// Reads the image side. @param config of the whole model   @param text the text model
  /// @throws DataError for a key that changes the result and is not followed
  VisionSpec (*read)(const JsonFields& config, const ArchSpec& text) = nullptr;
};

extern const WholeModel kWholeQwen2_5Vl, kWholeQwen3Vl, kWholeQwen3VlMoe, kWholeQwen3_5,
    kWholeQwen3_5Moe, kWholeGemma3, kWholeGemma4, kWholeSmolVlm, kWholeIdefics3, kWholeLlava,
    kWholeLlavaNext, kWholeInternVl, kWholeMistral3;

const std::vector<const WholeModel*>& whole_models();
/// nullptr: the model_type is not that of a model that takes images.
const WholeModel* find_whole_model(const std::string& model_type);
/// nullptr: the model_type is that of a family.
const TextPart* find_text_part(const std::string& model_type);

/// Reads both parts of a whole model.   @throws DataError
ArchSpec read_whole_model(const JsonFields& config, const WholeModel& model);

}  // namespace sftrun::spec
