#include "sftrun/core/error.h"
#include "tower_config.h"

/// Idefics 3 (arXiv:2408.12637) and SmolVLM (arXiv:2504.05299): SigLIP's tower on tiles, squares of patches side by side, one linear.
namespace sftrun::spec {
namespace {

VisionSpec read_idefics3(const JsonFields& config, const ArchSpec& text) {
  const TowerConfig tower(
      config,
      R"({"hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
                                      "num_channels": 3, "image_size": 224, "patch_size": 32, "hidden_act": "gelu_pytorch_tanh",
                                      "layer_norm_eps": 1e-6})");
  VisionSpec vision;
  read_clip_names(*tower, "model.vision_model.", vision);
  const int64_t patches = vision.image_size / vision.patches.side,
                side = config.get_int("scale_factor", 2, 1, patches),
                inner = vision.hidden_size * side * side;
  if (patches % side != 0) {
    throw DataError(
        fmt::format("{} patches a side are not a multiple of `scale_factor` {}", patches, side),
        config.where(), "copy config.json of the released model again");
  }
  vision.projector = {"model.connector."};
  vision.merger = {.merge = PatchMerge::kConcat,
                   .side = side,
                   .steps = {{tower_linear("model.connector.modality_projection.proj", inner,
                                           text.hidden_size, false)}}};
  return vision;
}

std::vector<Rename> idefics3_renames() {
  return {{"text_model.", "model.text_model."},
          {"vision_model.", "model.vision_model."},
          {"connector.", "model.connector."}};
}

}  // namespace

const WholeModel kWholeSmolVlm = {
    .model_type = "smolvlm",
    .model_class = "SmolVLMForConditionalGeneration",
    .text_type = "llama",
    .text_type_is_open = true,
    .text_prefix = "model.text_model.",
    .image_token_id = 128257,
    .renames = idefics3_renames,
    .read = read_idefics3,
};

const WholeModel kWholeIdefics3 = {
    .model_type = "idefics3",
    .model_class = "Idefics3ForConditionalGeneration",
    .text_type = "llama",
    .text_type_is_open = true,
    .text_prefix = "model.text_model.",
    .image_token_id = 128257,
    .renames = idefics3_renames,
    .read = read_idefics3,
};

}  // namespace sftrun::spec
