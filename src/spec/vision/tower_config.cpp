#include "tower_config.h"

#include "../arch_checks.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;

constexpr const char* kVisionConfig = "vision_config";

json over_defaults(const JsonFields& config, const char* defaults) {
  json merged = json::parse(defaults);
  const json* written = config.find(kVisionConfig);
  if (!written) config.fail_missing(kVisionConfig);
  if (!written->is_object()) config.fail(kVisionConfig, "an object");
  for (const auto& [key, value] : written->items())
    if (!value.is_null()) merged[key] = value;
  return merged;
}

}  // namespace

TowerConfig::TowerConfig(const JsonFields& config, const char* defaults)
    : merged_(over_defaults(config, defaults)),
      fields_(merged_, config.where(), {}, std::string(kVisionConfig) + ".") {}

std::string tower_type(const JsonFields& config, const std::string& otherwise) {
  return TowerConfig(config, "{}")->get_string("model_type", otherwise);
}

int64_t tower_size(const JsonFields& tower, const char* key) {
  return tower.require_int(key, 1, kMaxSize);
}

int64_t exact_side(const JsonFields& fields, const char* key, int64_t area) {
  int64_t side = 1;
  while (side * side < area) ++side;
  if (side * side != area) fields.fail(key, "a square number");
  return side;
}

int64_t square_side(const JsonFields& tower, const char* key) {
  const json* value = tower.find(key);
  if (!value || !value->is_array()) return tower_size(tower, key);
  const bool is_square =
      value->size() == 2 && (*value)[0] == (*value)[1] && (*value)[0].is_number_integer();
  const int64_t side = is_square ? (*value)[0].get<int64_t>() : 0;
  if (side < 1 || side > kMaxSize)
    tower.fail(key, "a number of pixels, or the two equal sides of a square");
  return side;
}

TowerActivation tower_activation(const JsonFields& tower, const char* key) {
  const std::string name = tower.get_string(key, "");
  if (name == "silu") return TowerActivation::kSilu;
  if (name == "gelu") return TowerActivation::kGelu;
  if (name == "gelu_pytorch_tanh") return TowerActivation::kGeluTanh;
  if (name == "quick_gelu") return TowerActivation::kQuickGelu;
  throw DataError(fmt::format("`{}` \"{}\" is not supported", tower.full_name(key), name),
                  tower.where(),
                  R"(supported: "silu", "gelu", "gelu_pytorch_tanh" and "quick_gelu")");
}

void refuse_dropout(const JsonFields& tower, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const json* value = tower.find(key);
    if (!value || *value == 0) continue;
    throw DataError(fmt::format("`{}` {} is not supported", tower.full_name(key), value->dump()),
                    tower.where(), "set it to 0, as in released models");
  }
}

void require_rgb(const JsonFields& tower, const char* key) {
  if (tower.require_int(key, 1, kMaxSize) != 3)
    tower.fail(key, "3: images are read as red, green and blue");
}

double axial_theta(const JsonFields& tower, double otherwise) {
  const json* rope = tower.find(tower.has("rope_scaling") ? "rope_scaling" : "rope_parameters");
  const double outside = tower.get_positive("rope_theta", otherwise);
  if (!rope) return outside;
  const JsonFields fields(*rope, tower.where(), {}, tower.full_name("rope_parameters") + ".");
  const std::string type = fields.get_string("rope_type", fields.get_string("type", "axial"));
  if (type != "axial" && type != "default") {
    throw DataError(
        fmt::format("`{}` \"{}\" is not supported", fields.full_name("rope_type"), type),
        tower.where(), "supported in a tower: \"axial\", which is also called \"default\"");
  }
  return fields.get_positive("rope_theta", outside);
}

void set_heads(VisionSpec& vision, int64_t num_heads, const JsonFields& tower) {
  vision.num_heads = num_heads;
  if (vision.hidden_size % num_heads != 0) {
    throw DataError(
        fmt::format("`{}` {} is not a multiple of the tower's {} attention heads",
                    tower.full_name("hidden_size"), vision.hidden_size, num_heads),
        tower.where(),
        "configuration and weights must be of one released model: copy config.json again");
  }
  vision.head_dim = vision.hidden_size / num_heads;
}

void require_quarters(const VisionSpec& vision, const JsonFields& tower) {
  if (vision.head_dim % 4 == 0) return;
  throw DataError(fmt::format("the tower's heads have {} channels, which rotary positions of rows "
                              "and columns do not divide by 4",
                              vision.head_dim),
                  tower.where(),
                  fmt::format("`{}` must be a multiple of four times the heads",
                              tower.full_name("hidden_size")));
}

int64_t read_feature_layer(const JsonFields& config, int64_t otherwise, VisionSpec& vision) {
  constexpr const char* kKey = "vision_feature_layer";
  const json* written = config.find(kKey);
  if (written && written->is_array()) {
    throw DataError("a list of layers in `vision_feature_layer` is not supported", config.where(),
                    "use a model whose projector reads one layer, as LLaVA 1.5's does");
  }
  // States of the tower are numbered from 0, the input of the first layer, or from -1, the output of the last.
  const int64_t state = config.get_int(kKey, otherwise, -vision.num_layers, vision.num_layers);
  vision.num_used_layers = state < 0 ? vision.num_layers + 1 + state : state;
  if (vision.num_used_layers == 0) config.fail(kKey, "the output of a layer");
  return state;
}

void read_selection(const JsonFields& config, const char* otherwise, VisionSpec& vision) {
  constexpr const char* kKey = "vision_feature_select_strategy";
  const std::string strategy = config.get_string(kKey, otherwise);
  if (strategy != "default" && strategy != "full") config.fail(kKey, R"("default" or "full")");
  vision.drops_class_token = strategy == "default";
  if (!vision.drops_class_token || !vision.class_token.empty()) return;
  throw DataError(
      "`vision_feature_select_strategy` \"default\" drops the first patch of a tower without a "
      "class token",
      config.where(), "set it to \"full\", as released models with such a tower do");
}

void require_exact_gelu(const JsonFields& config) {
  constexpr const char* kKey = "projector_hidden_act";
  if (config.get_string(kKey, "gelu") != "gelu") config.fail(kKey, "\"gelu\"");
}

TowerLinear tower_linear(std::string module, int64_t in, int64_t out, bool bias) {
  return {.module = std::move(module), .in_features = in, .out_features = out, .bias = bias};
}

TowerNorm tower_norm(TowerNormKind kind, std::string module, int64_t size, double eps) {
  return {.kind = kind, .module = std::move(module), .size = size, .eps = eps};
}

void add_two_linears(VisionSpec& vision, int64_t in, int64_t out, bool bias) {
  const std::string prefix = "model.multi_modal_projector.";
  vision.projector = {prefix};
  vision.merger.steps.push_back({tower_linear(prefix + "linear_1", in, out, bias), true});
  vision.merger.steps.push_back({tower_linear(prefix + "linear_2", out, out, bias), false});
}

void read_clip_names(const JsonFields& tower, const std::string& prefix, VisionSpec& vision) {
  vision.prefix = prefix;
  vision.layers = prefix + "encoder.layers.";
  const int64_t hidden = vision.hidden_size = tower_size(tower, "hidden_size"),
                inner = vision.intermediate_size = tower_size(tower, "intermediate_size");
  vision.num_layers = vision.num_used_layers =
      tower.require_int("num_hidden_layers", 1, kMaxLayers);
  set_heads(vision, tower_size(tower, "num_attention_heads"), tower);
  require_rgb(tower, "num_channels");
  refuse_dropout(tower, {"attention_dropout"});
  vision.activation = tower_activation(tower, "hidden_act");
  vision.image_size = square_side(tower, "image_size");
  vision.patches = {.module = prefix + "embeddings.patch_embedding",
                    .side = square_side(tower, "patch_size"),
                    .bias = true};
  const int64_t side = vision.image_size / vision.patches.side;
  if (side == 0) {
    throw DataError(
        fmt::format("`{}` {} is smaller than a patch of {} pixels", tower.full_name("image_size"),
                    vision.image_size, vision.patches.side),
        tower.where(), "copy config.json of the released model again");
  }
  vision.positions = TowerPositions::kTable;
  vision.position_table = prefix + "embeddings.position_embedding.weight";
  vision.position_rows = side * side;
  const double eps = tower.require_positive("layer_norm_eps");
  const auto norm = [&](const char* module) {
    return tower_norm(TowerNormKind::kLayerNorm, module, hidden, eps);
  };
  vision.layer = {.attention_in = norm("layer_norm1"),
                  .mlp_in = norm("layer_norm2"),
                  .qkv = {tower_linear("self_attn.q_proj", hidden, hidden, true),
                          tower_linear("self_attn.k_proj", hidden, hidden, true),
                          tower_linear("self_attn.v_proj", hidden, hidden, true)},
                  .output = tower_linear("self_attn.out_proj", hidden, hidden, true),
                  .up = {tower_linear("mlp.fc1", hidden, inner, true)},
                  .down = tower_linear("mlp.fc2", inner, hidden, true)};
  vision.post_norm = norm("post_layernorm");
  vision.post_norm.module = prefix + vision.post_norm.module;
  vision.unused = {prefix + "embeddings.position_ids"};  // a buffer of older files
}

std::vector<Rename> language_model_renames() {
  return {{"language_model.lm_head.", "lm_head."},
          {"language_model.", "model.language_model."},
          {"model.language_model.model.",
           "model.language_model."},  // as both earlier versions and 5.10 to 5.23 wrote it
          {"model.language_model.model.", "model.language_model."}};
}

std::vector<Rename> llava_renames() {
  std::vector<Rename> renames = language_model_renames();
  for (const Rename& rename : {Rename{"vision_tower.", "model.vision_tower."},
                               {"model.vision_tower.vision_model.", "model.vision_tower."},
                               {"multi_modal_projector.", "model.multi_modal_projector."},
                               {"image_newline", "model.image_newline"}})
    renames.push_back(rename);
  return renames;
}

}  // namespace sftrun::spec
