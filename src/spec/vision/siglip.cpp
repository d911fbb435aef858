#include "sftrun/core/error.h"
#include "tower_config.h"

/// SigLIP (arXiv:2303.15343), the tower of Gemma 3.
namespace sftrun::spec {
namespace {

constexpr const char* kProjection = "model.multi_modal_projector.";

/// The mean of squares of patches leaves `mm_tokens_per_image`.
void add_mean_and_projection(const JsonFields& config, const ArchSpec& text, double eps,
                             VisionSpec& vision) {
  constexpr const char* kTokens = "mm_tokens_per_image";
  const int64_t side = vision.image_size / vision.patches.side,
                tokens = exact_side(config, kTokens, config.get_int(kTokens, 256, 1, side * side));
  if (side % tokens != 0) {
    throw DataError(
        fmt::format("{} patches a side are not a multiple of {} image tokens a side", side, tokens),
        config.where(), fmt::format("`{}` must be the square of a divisor of {}", kTokens, side));
  }
  const std::string prefix = kProjection;
  vision.projector = {prefix};
  vision.merger = {.after = tower_norm(TowerNormKind::kRmsAddsOne, prefix + "mm_soft_emb_norm",
                                       vision.hidden_size, eps),
                   .merge = PatchMerge::kMean,
                   .side = side / tokens,
                   .steps = {{tower_linear(prefix + "mm_input_projection_weight",
                                           vision.hidden_size, text.hidden_size, false)}},
                   .is_transposed_parameter = true};
}

VisionSpec read_gemma3_vision(const JsonFields& config, const ArchSpec& text) {
  const std::string type = tower_type(config, "siglip_vision_model");
  if (type != "siglip_vision_model") {
    throw DataError(fmt::format("the tower \"{}\" is not supported in gemma3", type),
                    config.where(), "supported in `vision_config.model_type`: siglip_vision_model");
  }
  VisionSpec vision;
  read_siglip(config, vision);
  add_mean_and_projection(config, text, vision.post_norm.eps, vision);
  vision.both_ways = BothWays::kEveryLayer;
  return vision;
}

}  // namespace

void read_siglip(const JsonFields& config, VisionSpec& vision) {
  const TowerConfig tower(
      config,
      R"({"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
                                      "num_channels": 3, "image_size": 224, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh",
                                      "layer_norm_eps": 1e-6})");
  read_clip_names(*tower, "model.vision_tower.", vision);
  // A pooling head makes one vector of an image, which these models do not use.
  if (tower->get_bool("vision_use_head", true)) vision.unused.push_back(vision.prefix + "head.");
}

const WholeModel kWholeGemma3 = {
    .model_type = "gemma3",
    .model_class = "Gemma3ForConditionalGeneration",
    .text_type = "gemma3_text",
    .is_tied = true,
    .image_token_id = 262144,
    .renames = llava_renames,
    .read = read_gemma3_vision,
};

}  // namespace sftrun::spec
