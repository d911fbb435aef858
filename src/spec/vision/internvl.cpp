#include <cmath>

#include "../arch_checks.h"
#include "sftrun/core/error.h"
#include "tower_config.h"

/// InternVL 3 and 3.5 (arXiv:2504.10479) as transformers has them: InternViT with scaled layers, squares of patches side by side.
namespace sftrun::spec {
namespace {

constexpr const char* kInternVlDefaults =
    R"({"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_channels": 3, "image_size": [448, 448], "patch_size": [14, 14], "hidden_act": "gelu", "norm_type": "layer_norm",
    "layer_norm_eps": 1e-6})";

TowerNormKind read_norm_type(const JsonFields& tower) {
  const std::string type = tower.get_string("norm_type", "");
  if (type == "rms_norm") return TowerNormKind::kRms;
  if (type != "layer_norm") tower.fail("norm_type", R"("layer_norm" or "rms_norm")");
  return TowerNormKind::kLayerNorm;
}

void set_internvl_layer(const JsonFields& tower, VisionSpec& vision) {
  const int64_t hidden = vision.hidden_size, inner = vision.intermediate_size;
  const double eps = tower.require_positive("layer_norm_eps");
  const TowerNormKind kind = read_norm_type(tower);
  const bool bias = tower.get_bool("attention_bias", false);
  vision.layer = {.attention_in = tower_norm(kind, "layernorm_before", hidden, eps),
                  .mlp_in = tower_norm(kind, "layernorm_after", hidden, eps),
                  .qkv = {tower_linear("attention.q_proj", hidden, hidden, bias),
                          tower_linear("attention.k_proj", hidden, hidden, bias),
                          tower_linear("attention.v_proj", hidden, hidden, bias)},
                  .output = tower_linear("attention.projection_layer", hidden, hidden, true),
                  .up = {tower_linear("mlp.fc1", hidden, inner, true)},
                  .down = tower_linear("mlp.fc2", inner, hidden, true),
                  .attention_scale = "lambda_1",
                  .mlp_scale = "lambda_2"};
  if (!tower.get_bool("use_qk_norm", false)) return;
  constexpr double kEps = 1e-6;
  vision.layer.query = tower_norm(TowerNormKind::kRms, "attention.q_norm", hidden, kEps);
  vision.layer.key = tower_norm(TowerNormKind::kRms, "attention.k_norm", hidden, kEps);
}

void read_internvl_tower(const JsonFields& tower, VisionSpec& vision) {
  const std::string prefix = vision.prefix = "model.vision_tower.";
  vision.layers = prefix + "encoder.layer.";
  vision.hidden_size = tower_size(tower, "hidden_size");
  vision.intermediate_size = tower_size(tower, "intermediate_size");
  vision.num_layers = tower.require_int("num_hidden_layers", 1, kMaxLayers);
  set_heads(vision, tower_size(tower, "num_attention_heads"), tower);
  require_rgb(tower, "num_channels");
  refuse_dropout(tower, {"attention_dropout", "hidden_dropout_prob", "projection_dropout"});
  if (tower.get_bool("use_mask_token", false))
    tower.fail("use_mask_token", "false, as in released models: masked patches are not supported");
  vision.activation = tower_activation(tower, "hidden_act");
  vision.image_size = square_side(tower, "image_size");
  vision.patches = {.module = prefix + "embeddings.patch_embeddings.projection",
                    .side = square_side(tower, "patch_size"),
                    .bias = true};
  const int64_t side = vision.image_size / vision.patches.side;
  if (side == 0) tower.fail("image_size", "at least `vision_config.patch_size`");
  vision.class_token = prefix + "embeddings.cls_token";
  vision.class_token_in_1_1_hidden = true;
  if (tower.get_bool("use_absolute_position_embeddings", true)) {
    vision.positions = TowerPositions::kTable;
    vision.position_table = prefix + "embeddings.position_embeddings";
    vision.position_rows = side * side + 1;
    vision.position_table_in_1_rows = true;
  }
  set_internvl_layer(tower, vision);
  if (!tower.get_bool("use_mean_pooling", true))
    vision.post_norm = tower_norm(TowerNormKind::kLayerNorm, prefix + "layernorm",
                                  vision.hidden_size, tower.require_positive("layer_norm_eps"));
}

/// Patches of the side of a square: the inverse of `downsample_ratio`.
int64_t read_square(const JsonFields& config, int64_t patches) {
  constexpr const char* kKey = "downsample_ratio";
  const double inverse = 1 / config.get_positive(kKey, 0.5);
  const bool is_whole =
      inverse >= 1 && inverse <= static_cast<double>(patches) && inverse == std::floor(inverse);
  if (!is_whole || patches % static_cast<int64_t>(inverse) != 0)
    config.fail(kKey,
                fmt::format("1 divided by a divisor of {}, the tower's patches a side", patches));
  return static_cast<int64_t>(inverse);
}

VisionSpec read_internvl(const JsonFields& config, const ArchSpec& text) {
  const TowerConfig tower(config, kInternVlDefaults);
  VisionSpec vision;
  read_internvl_tower(*tower, vision);
  // transformers norms the last layer's output only where it is asked for as -1.
  vision.uses_post_norm = read_feature_layer(config, -1, vision) == -1;
  read_selection(config, "default", vision);
  if (!vision.drops_class_token)
    config.fail("vision_feature_select_strategy",
                "\"default\": squares of patches leave no place for the class token");
  require_exact_gelu(config);
  const int64_t side = read_square(config, vision.image_size / vision.patches.side),
                inner = vision.hidden_size * side * side;
  constexpr double kEps = 1e-5;
  vision.merger = {.after = tower_norm(TowerNormKind::kLayerNorm,
                                       "model.multi_modal_projector.layer_norm", inner, kEps),
                   .merge = PatchMerge::kConcat,
                   .side = side};
  add_two_linears(vision, inner, text.hidden_size, true);
  return vision;
}

}  // namespace

const WholeModel kWholeInternVl = {
    .model_type = "internvl",
    .model_class = "InternVLForConditionalGeneration",
    .text_type = "qwen2",
    .text_type_is_open = true,
    .is_tied = true,
    .image_token_id = 151667,
    .renames = llava_renames,
    .read = read_internvl,
};

}  // namespace sftrun::spec
