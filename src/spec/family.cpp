#include "family.h"

#include <cmath>

#include "arch_checks.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "vision/whole_model.h"

namespace sftrun::spec {

using nlohmann::json;

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> all = {
      &kLlama,    &kMistral, &kQwen2,   &kQwen3,      &kGemma2,  &kGemma3,
      &kPhi3,     &kSmolLm3, &kOlmo2,   &kOlmo3,      &kGranite, &kMixtral,
      &kQwen3Moe, &kGptOss,  &kQwen3_5, &kQwen3_5Moe, &kGemma4};
  return all;
}

const Family& family_named(const std::string& model_type, const std::string& where) {
  std::vector<std::string> names;
  for (const Family* family : families()) {
    if (family->model_type == model_type) return *family;
    names.emplace_back(family->model_type);
  }
  for (const WholeModel* model : whole_models()) names.emplace_back(model->model_type);
  throw DataError(fmt::format("the model family \"{}\" is not supported", model_type), where,
                  "supported families: " + join(names, ", "));
}

const Family* family_of_gguf(const std::string& architecture, bool has_experts) {
  for (const Family* family : families()) {
    if (family->gguf == architecture && family->is_mixture == has_experts) return family;
  }
  for (const Family* family : families()) {
    if (!family->gguf.empty() && family->gguf == architecture) return family;
    if (!architecture.empty() && family->gguf_of_axes.name == architecture) return family;
  }
  return nullptr;
}

void set_windows(ArchSpec& arch, int64_t window) {
  for (LayerSpec& layer : arch.layers) layer.window = window;
}

void read_window(const JsonFields& config, ArchSpec& arch) {
  set_windows(arch, config.get_int("sliding_window", 0, 1, kMaxSize));
}

void write_window(const ArchSpec& arch, json& config) {
  config["sliding_window"] = window_of(arch) > 0 ? json(window_of(arch)) : json(nullptr);
}

const json* find_layer_types(const JsonFields& config, const ArchSpec& arch) {
  const json* types = config.find("layer_types");
  if (types && (!types->is_array() || types->size() != arch.layers.size()))
    config.fail("layer_types",
                fmt::format("a list of {} types, one per layer", arch.layers.size()));
  return types;
}

void make_every_layer_sparse(ArchSpec& arch) {
  for (LayerSpec& layer : arch.layers) layer.sparse = true;
}

double gemma_embedding_scale(const ArchSpec& arch) {
  return std::sqrt(static_cast<double>(arch.hidden_size));
}

void read_layer_types(const JsonFields& config, ArchSpec& arch, int64_t window,
                      const std::function<bool(int64_t layer)>& slides) {
  const json* types = find_layer_types(config, arch);
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    bool sliding = slides(static_cast<int64_t>(i));
    if (types) {
      const json& type = (*types)[i];
      sliding = type == "sliding_attention";
      if (!sliding && type != "full_attention")
        config.fail("layer_types", R"("full_attention" or "sliding_attention" for each layer)");
    }
    if (sliding && window == 0) config.fail_missing("sliding_window");
    arch.layers[i].window = sliding ? window : 0;
  }
}

void write_layer_types(const ArchSpec& arch, json& config) {
  json types = json::array();
  for (const LayerSpec& layer : arch.layers)
    types.push_back(layer.window > 0 ? "sliding_attention" : "full_attention");
  config["layer_types"] = types;
}

size_t gguf_blocks(const JsonFields& meta) {
  return static_cast<size_t>(meta.require_int("block_count", 1, kMaxLayers));
}

std::vector<bool> read_flags_gguf(const JsonFields& meta, const std::string& key,
                                  const ArchSpec& arch) {
  const json* values = meta.find(key);
  // The list also covers the layers that predict further tokens (nextn_predict_layers), at its end.
  if (!values || !values->is_array() || values->size() != gguf_blocks(meta))
    meta.fail(key, fmt::format("a list of {} booleans", gguf_blocks(meta)));
  std::vector<bool> flags;
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    if (!(*values)[i].is_boolean()) meta.fail(key, "a list of true or false values");
    flags.push_back((*values)[i].get<bool>());
  }
  return flags;
}

void read_windows_gguf(const JsonFields& meta, ArchSpec& arch, int64_t window, int64_t period) {
  const char* key = "attention.sliding_window_pattern";
  const json* pattern = meta.find(key);
  std::vector<bool> slides;
  if (pattern && pattern->is_array()) {
    slides = read_flags_gguf(meta, key, arch);
  } else {
    period = meta.get_int(key, period, 0, kMaxLayers);
    for (int64_t i = 0; i < arch.num_layers; ++i)
      slides.push_back(period == 0 || (i + 1) % period != 0);
  }
  for (size_t i = 0; i < arch.layers.size(); ++i) arch.layers[i].window = slides[i] ? window : 0;
}

void write_windows_gguf(const ArchSpec& arch, GgufMetadataWriter& meta, int64_t period) {
  meta.set("attention.sliding_window", window_of(arch));
  if (window_of(arch) == 0) return;
  json pattern = json::array();
  bool is_usual = true;
  for (int64_t i = 0; i < arch.num_layers; ++i) {
    const bool slides = arch.layers[static_cast<size_t>(i)].window > 0;
    is_usual = is_usual && slides == ((i + 1) % period != 0);
    pattern.push_back(slides);
  }
  if (!is_usual) meta.set("attention.sliding_window_pattern", pattern);
}

int64_t window_of(const ArchSpec& arch) {
  for (const LayerSpec& layer : arch.layers) {
    if (layer.window > 0) return layer.window;
  }
  return 0;
}

void read_attention_bias(const JsonFields& config, ArchSpec& arch) {
  arch.qkv_bias = arch.o_bias = config.get_bool("attention_bias", false);
}

}  // namespace sftrun::spec
