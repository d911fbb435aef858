#include <algorithm>

#include "../arch_checks.h"
#include "sftrun/core/error.h"
#include "tower_config.h"

/// Qwen2.5-VL (arXiv:2502.13923), Qwen3-VL (arXiv:2511.21631) and Qwen 3.5: patches of pairs of frames, rotary positions of rows and
/// columns, squares of patches side by side. The first has windows in most layers, the second DeepStack.
namespace sftrun::spec {
namespace {

using nlohmann::json;

constexpr const char* kPrefix = "model.visual.";

/// Sizes, patches and rotary positions.
void read_qwen_tower(const JsonFields& tower, const ArchSpec& text, VisionSpec& vision) {
  vision.prefix = kPrefix;
  vision.layers = vision.prefix + "blocks.";
  vision.hidden_size = tower_size(tower, "hidden_size");
  vision.intermediate_size = tower_size(tower, "intermediate_size");
  vision.num_layers = vision.num_used_layers = tower.require_int("depth", 1, kMaxLayers);
  set_heads(vision, tower_size(tower, "num_heads"), tower);
  require_quarters(vision, tower);
  require_rgb(tower, "in_channels");
  vision.activation = tower_activation(tower, "hidden_act");
  vision.patches = {.module = vision.prefix + "patch_embed.proj",
                    .side = square_side(tower, "patch_size"),
                    .frames = tower.require_int("temporal_patch_size", 1, 1 << 10),
                    .has_frames_axis = true};
  vision.rope = TowerRope::kHalves;
  vision.rope_theta = axial_theta(tower, 10000);
  if (tower_size(tower, "out_hidden_size") == text.hidden_size) return;
  throw DataError(fmt::format("`{}` {} differs from the text model's `hidden_size` {}",
                              tower.full_name("out_hidden_size"),
                              tower_size(tower, "out_hidden_size"), text.hidden_size),
                  tower.where(),
                  "both must be equal: copy config.json of the released model again");
}

int64_t read_merge_side(const JsonFields& tower) {
  return tower.require_int("spatial_merge_size", 1, 1 << 10);
}

/// Indices of layers, increasing.
std::vector<int64_t> layer_list(const JsonFields& tower, const char* key, int64_t num_layers) {
  const json* list = tower.find(key);
  const std::string expected =
      fmt::format("a list of the tower's layers, increasing, from 0 to {}", num_layers - 1);
  if (!list || !list->is_array()) tower.fail(key, expected);
  std::vector<int64_t> layers;
  for (const json& item : *list) {
    const bool fits = item.is_number_integer() && item >= 0 && item < num_layers &&
                      (layers.empty() || item > layers.back());
    if (!fits) tower.fail(key, expected);
    layers.push_back(item.get<int64_t>());
  }
  return layers;
}

// ---- Qwen2.5-VL

/// Layers that the tower does not have may be listed, as the class's default does for shallow towers.
std::vector<int64_t> read_full_layers(const JsonFields& tower, int64_t num_layers) {
  std::vector<int64_t> layers = tower.get_ids("fullatt_block_indexes");
  std::erase_if(layers, [&](int64_t layer) { return layer >= num_layers; });
  std::sort(layers.begin(), layers.end());
  return layers;
}

/// Windows of `window_size` pixels.
void read_windows(const JsonFields& tower, VisionSpec& vision) {
  const int64_t cell = vision.merger.side * vision.patches.side;
  vision.window_side = tower_size(tower, "window_size") / cell;
  if (vision.window_side == 0)
    tower.fail("window_size", fmt::format("at least {} pixels, the side of a merged patch", cell));
  vision.full_layers = read_full_layers(tower, vision.num_layers);
}

VisionSpec read_qwen2_5_vl(const JsonFields& config, const ArchSpec& text) {
  const TowerConfig tower(
      config,
      R"({"depth": 32, "hidden_size": 3584, "hidden_act": "silu", "intermediate_size": 3420, "num_heads": 16,
                                      "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
                                      "window_size": 112, "out_hidden_size": 3584, "fullatt_block_indexes": [7, 15, 23, 31]})");
  VisionSpec vision;
  read_qwen_tower(*tower, text, vision);
  const int64_t hidden = vision.hidden_size, inner = vision.intermediate_size,
                side = read_merge_side(*tower), merged = hidden * side * side;
  constexpr double kEps = 1e-6;
  const auto norm = [&](std::string module) {
    return tower_norm(TowerNormKind::kRms, std::move(module), hidden, kEps);
  };
  vision.layer = {.attention_in = norm("norm1"),
                  .mlp_in = norm("norm2"),
                  .qkv = {tower_linear("attn.qkv", hidden, 3 * hidden, true)},
                  .output = tower_linear("attn.proj", hidden, hidden, true),
                  .up = {tower_linear("mlp.gate_proj", hidden, inner, true),
                         tower_linear("mlp.up_proj", hidden, inner, true)},
                  .down = tower_linear("mlp.down_proj", inner, hidden, true)};
  const std::string prefix = vision.prefix + "merger.";
  vision.projector = {prefix};
  vision.merger = {.before = norm(prefix + "ln_q"),
                   .merge = PatchMerge::kConcat,
                   .side = side,
                   .steps = {{tower_linear(prefix + "mlp.0", merged, merged, true), true},
                             {tower_linear(prefix + "mlp.2", merged, text.hidden_size, true)}}};
  read_windows(*tower, vision);
  return vision;
}

// ---- Qwen3-VL and Qwen 3.5

constexpr double kLayerNormEps = 1e-6;

Merger merger_of(const std::string& prefix, const VisionSpec& vision, const ArchSpec& text,
                 int64_t side, bool norm_after) {
  const int64_t merged = vision.hidden_size * side * side;
  Merger merger{.merge = PatchMerge::kConcat,
                .side = side,
                .steps = {{tower_linear(prefix + "linear_fc1", merged, merged, true), true},
                          {tower_linear(prefix + "linear_fc2", merged, text.hidden_size, true)}}};
  (norm_after ? merger.after : merger.before) =
      tower_norm(TowerNormKind::kLayerNorm, prefix + "norm",
                 norm_after ? merged : vision.hidden_size, kLayerNormEps);
  return merger;
}

void read_square_table(const JsonFields& tower, VisionSpec& vision) {
  constexpr const char* kKey = "num_position_embeddings";
  vision.positions = TowerPositions::kInterpolated;
  vision.position_table = vision.prefix + "pos_embed.weight";
  vision.position_rows = tower_size(tower, kKey);
  exact_side(tower, kKey, vision.position_rows);
}

VisionSpec read_qwen3_tower(const JsonFields& config, const ArchSpec& text, bool has_deepstack) {
  const TowerConfig tower(
      config,
      R"({"depth": 27, "hidden_size": 1152, "hidden_act": "gelu_pytorch_tanh", "intermediate_size": 4304,
                                      "num_heads": 16, "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2,
                                      "temporal_patch_size": 2, "out_hidden_size": 3584, "num_position_embeddings": 2304,
                                      "deepstack_visual_indexes": [8, 16, 24]})");
  VisionSpec vision;
  read_qwen_tower(*tower, text, vision);
  vision.patches.bias = true;
  read_square_table(*tower, vision);
  const int64_t hidden = vision.hidden_size, inner = vision.intermediate_size,
                side = read_merge_side(*tower);
  const auto norm = [&](const char* module) {
    return tower_norm(TowerNormKind::kLayerNorm, module, hidden, kLayerNormEps);
  };
  vision.layer = {.attention_in = norm("norm1"),
                  .mlp_in = norm("norm2"),
                  .qkv = {tower_linear("attn.qkv", hidden, 3 * hidden, true)},
                  .output = tower_linear("attn.proj", hidden, hidden, true),
                  .up = {tower_linear("mlp.linear_fc1", hidden, inner, true)},
                  .down = tower_linear("mlp.linear_fc2", inner, hidden, true)};
  vision.projector = {vision.prefix + "merger."};
  vision.merger = merger_of(vision.projector[0], vision, text, side, false);
  if (!has_deepstack) return vision;
  constexpr const char* kDeepstack = "deepstack_visual_indexes";
  vision.deepstack_layers = layer_list(*tower, kDeepstack, vision.num_layers);
  if (static_cast<int64_t>(vision.deepstack_layers.size()) > text.num_layers)
    tower->fail(kDeepstack,
                fmt::format("at most {} layers, as many as the text model has", text.num_layers));
  const std::string list = vision.prefix + "deepstack_merger_list.";
  vision.projector.push_back(list);
  for (size_t k = 0; k < vision.deepstack_layers.size(); ++k)
    vision.deepstack.push_back(merger_of(fmt::format("{}{}.", list, k), vision, text, side, true));
  return vision;
}

VisionSpec read_qwen3_vl(const JsonFields& config, const ArchSpec& text) {
  return read_qwen3_tower(config, text, true);
}

VisionSpec read_qwen3_5_vision(const JsonFields& config, const ArchSpec& text) {
  return read_qwen3_tower(config, text, false);
}

std::vector<Rename> qwen_renames() {
  std::vector<Rename> renames = language_model_renames();
  renames.push_back({"visual.", "model.visual."});
  return renames;
}

/// Files have the text model's own names beside the tower's.
std::vector<Rename> qwen2_5_renames() {
  std::vector<Rename> renames = qwen_renames();
  renames.push_back({"model.embed_tokens.", "model.language_model.embed_tokens."});
  renames.push_back({"model.layers.", "model.language_model.layers."});
  renames.push_back({"model.norm.", "model.language_model.norm."});
  return renames;
}

}  // namespace

const WholeModel kWholeQwen2_5Vl = {
    .model_type = "qwen2_5_vl",
    .model_class = "Qwen2_5_VLForConditionalGeneration",
    .text_type = "qwen2_5_vl_text",
    .may_be_flat = true,
    .text_config_ties = true,
    .image_token_id = 151655,
    .renames = qwen2_5_renames,
    .read = read_qwen2_5_vl,
};

const WholeModel kWholeQwen3Vl = {
    .model_type = "qwen3_vl",
    .model_class = "Qwen3VLForConditionalGeneration",
    .text_type = "qwen3_vl_text",
    .image_token_id = 151655,
    .renames = qwen_renames,
    .read = read_qwen3_vl,
};

const WholeModel kWholeQwen3VlMoe = {
    .model_type = "qwen3_vl_moe",
    .model_class = "Qwen3VLMoeForConditionalGeneration",
    .text_type = "qwen3_vl_moe_text",
    .image_token_id = 151655,
    .renames = qwen_renames,
    .read = read_qwen3_vl,
};

const WholeModel kWholeQwen3_5 = {
    .model_type = "qwen3_5",
    .model_class = "Qwen3_5ForConditionalGeneration",
    .text_type = "qwen3_5_text",
    .image_token_id = 248056,
    .renames = qwen_renames,
    .read = read_qwen3_5_vision,
};

const WholeModel kWholeQwen3_5Moe = {
    .model_type = "qwen3_5_moe",
    .model_class = "Qwen3_5MoeForConditionalGeneration",
    .text_type = "qwen3_5_moe_text",
    .image_token_id = 248056,
    .renames = qwen_renames,
    .read = read_qwen3_5_vision,
};

}  // namespace sftrun::spec
