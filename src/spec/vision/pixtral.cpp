#include "../arch_checks.h"
#include "sftrun/core/error.h"
#include "tower_config.h"

/// Pixtral's tower (arXiv:2410.07073) takes images of any size; Mistral 3 merges its patches.
namespace sftrun::spec {
namespace {

VisionSpec read_mistral3_vision(const JsonFields& config, const ArchSpec& text) {
  const std::string type = tower_type(config, "pixtral");
  if (type != "pixtral") {
    throw DataError(fmt::format("the tower \"{}\" is not supported in mistral3", type),
                    config.where(), "supported in `vision_config.model_type`: pixtral");
  }
  VisionSpec vision;
  read_pixtral(config, vision);
  read_feature_layer(config, -1, vision);
  require_exact_gelu(config);
  const int64_t hidden = vision.hidden_size,
                side = config.get_int("spatial_merge_size", 2, 1, 1 << 10);
  const std::string prefix = "model.multi_modal_projector.";
  vision.merger.before =
      tower_norm(TowerNormKind::kRms, prefix + "norm", hidden, text.rms_norm_eps);
  vision.merger.merge = PatchMerge::kConcatChannelsFirst;
  vision.merger.side = side;
  vision.merger.steps.push_back(
      {tower_linear(prefix + "patch_merger.merging_layer", hidden * side * side, hidden, false)});
  add_two_linears(vision, hidden, text.hidden_size,
                  config.get_bool("multimodal_projector_bias", false));
  return vision;
}

}  // namespace

void read_pixtral(const JsonFields& config, VisionSpec& vision) {
  const TowerConfig tower(
      config,
      R"({"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
                                      "num_channels": 3, "image_size": 1024, "patch_size": 16, "hidden_act": "gelu"})");
  const std::string prefix = vision.prefix = "model.vision_tower.";
  vision.layers = prefix + "transformer.layers.";
  const int64_t hidden = vision.hidden_size = tower_size(*tower, "hidden_size"),
                inner = vision.intermediate_size = tower_size(*tower, "intermediate_size");
  vision.num_layers = vision.num_used_layers =
      tower->require_int("num_hidden_layers", 1, kMaxLayers);
  set_heads(vision, tower_size(*tower, "num_attention_heads"), *tower);
  require_quarters(vision, *tower);
  require_rgb(*tower, "num_channels");
  refuse_dropout(*tower, {"attention_dropout"});
  vision.activation = tower_activation(*tower, "hidden_act");
  vision.patches = {.module = prefix + "patch_conv", .side = square_side(*tower, "patch_size")};
  square_side(*tower, "image_size");  // only limits what the image processor makes
  vision.rope = TowerRope::kAlternating;
  vision.rope_theta = axial_theta(*tower, 10000);
  constexpr double kEps = 1e-5;
  const auto norm = [&](std::string module) {
    return tower_norm(TowerNormKind::kRms, std::move(module), hidden, kEps);
  };
  vision.pre_norm = norm(prefix + "ln_pre");
  vision.layer = {.attention_in = norm("attention_norm"),
                  .mlp_in = norm("ffn_norm"),
                  .qkv = {tower_linear("attention.q_proj", hidden, hidden, false),
                          tower_linear("attention.k_proj", hidden, hidden, false),
                          tower_linear("attention.v_proj", hidden, hidden, false)},
                  .output = tower_linear("attention.o_proj", hidden, hidden, false),
                  .up = {tower_linear("feed_forward.gate_proj", hidden, inner, false),
                         tower_linear("feed_forward.up_proj", hidden, inner, false)},
                  .down = tower_linear("feed_forward.down_proj", inner, hidden, false)};
}

const WholeModel kWholeMistral3 = {
    .model_type = "mistral3",
    .model_class = "Mistral3ForConditionalGeneration",
    .text_type = "mistral",
    .text_type_is_open = true,
    .is_tied = true,
    .image_token_id = 10,
    .renames = llava_renames,
    .read = read_mistral3_vision,
};

}  // namespace sftrun::spec
