#include "tower_config.h"

/// CLIP's image tower (arXiv:2103.00020), which LLaVA 1.5 and LLaVA-NeXT have.
namespace sftrun::spec {

void read_clip(const JsonFields& config, VisionSpec& vision) {
  const TowerConfig tower(
      config,
      R"({"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
                                      "num_channels": 3, "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu",
                                      "layer_norm_eps": 1e-5})");
  read_clip_names(*tower, "model.vision_tower.", vision);
  vision.patches.bias = false;
  vision.class_token = vision.prefix + "embeddings.class_embedding";
  vision.position_rows += 1;
  vision.pre_norm = vision.post_norm;
  vision.pre_norm.module = vision.prefix + "pre_layrnorm";  // transformers spells it so
}

}  // namespace sftrun::spec
