#include "../arch_checks.h"
#include "sftrun/core/error.h"
#include "tower_config.h"

/// LLaVA (arXiv:2310.03744): a tower, two linears, any text model. LLaVA-NeXT cuts images into tiles.
namespace sftrun::spec {
namespace {

using nlohmann::json;

void read_llava_tower(const JsonFields& config, VisionSpec& vision) {
  const std::string type = tower_type(config, "clip_vision_model");
  if (type == "clip_vision_model") return read_clip(config, vision);
  if (type == "siglip_vision_model") return read_siglip(config, vision);
  if (type == "pixtral") return read_pixtral(config, vision);
  throw DataError(fmt::format("the tower \"{}\" is not supported in {}", type,
                              config.get_string("model_type", "llava")),
                  config.where(),
                  "supported in `vision_config.model_type`: clip_vision_model, siglip_vision_model "
                  "and pixtral");
}

VisionSpec read_llava(const JsonFields& config, const ArchSpec& text) {
  VisionSpec vision;
  read_llava_tower(config, vision);
  read_feature_layer(config, -2, vision);
  vision.uses_post_norm = false;  // the layer's output is used as it is
  read_selection(config, "default", vision);
  require_exact_gelu(config);
  add_two_linears(vision, vision.hidden_size, text.hidden_size,
                  config.get_bool("multimodal_projector_bias", true));
  return vision;
}

void read_canvases(const JsonFields& config, VisionSpec& vision) {
  constexpr const char* kKey = "image_grid_pinpoints";
  const json usual = {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
  const json* written = config.find(kKey);
  const json& canvases = written ? *written : usual;
  const std::string expected = "a list of pairs, the height and width of canvases in pixels";
  if (!canvases.is_array() || canvases.empty()) config.fail(kKey, expected);
  for (const json& canvas : canvases) {
    if (!canvas.is_array() || canvas.size() != 2) config.fail(kKey, expected);
    std::array<int64_t, 2> sides{};
    for (size_t i = 0; i < 2; ++i) {
      const bool fits = canvas[i].is_number_integer() && canvas[i] > 0 && canvas[i] <= kMaxSize;
      if (!fits) config.fail(kKey, expected);
      sides[i] = canvas[i].get<int64_t>();
      if (sides[i] % vision.image_size == 0) continue;
      throw DataError(fmt::format("`{}` has a side of {} pixels, which tiles of {} do not fill",
                                  kKey, sides[i], vision.image_size),
                      config.where(), "name multiples of `vision_config.image_size`");
    }
    vision.canvases.push_back(sides);
  }
}

VisionSpec read_llava_next(const JsonFields& config, const ArchSpec& text) {
  VisionSpec vision = read_llava(config, text);
  if (vision.image_size == 0) {
    throw DataError(
        "the tower \"pixtral\" is not supported in llava_next, which cuts images into tiles",
        config.where(),
        "supported in `vision_config.model_type`: clip_vision_model and siglip_vision_model");
  }
  if (!vision.class_token.empty() && !vision.drops_class_token) {
    throw DataError("LLaVA-NeXT's tiles are put together without class tokens", config.where(),
                    "set `vision_feature_select_strategy` to \"default\"");
  }
  vision.newline = "model.image_newline";
  vision.projector.push_back(vision.newline);
  read_canvases(config, vision);
  return vision;
}

}  // namespace

const WholeModel kWholeLlava = {
    .model_type = "llava",
    .model_class = "LlavaForConditionalGeneration",
    .text_type = "llama",
    .text_type_is_open = true,
    .text_config_ties = true,
    .image_token_id = 32000,
    .renames = llava_renames,
    .read = read_llava,
};

const WholeModel kWholeLlavaNext = {
    .model_type = "llava_next",
    .model_class = "LlavaNextForConditionalGeneration",
    .text_type = "llama",
    .text_type_is_open = true,
    .image_token_id = 32000,
    .renames = llava_renames,
    .read = read_llava_next,
};

}  // namespace sftrun::spec
