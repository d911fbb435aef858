#include "../arch_checks.h"
#include "../family.h"
#include "sftrun/core/error.h"

/// Llama 1 to 3.2 and models of the same architecture: SmolLM 2, TinyLlama, Yi, …. Mistral adds
/// sliding windows; SmolLM 3 has layers without RoPE.
namespace sftrun::spec {
namespace {

using nlohmann::json;

void read_biases(const JsonFields& config, ArchSpec& arch) {
  read_attention_bias(config, arch);
  arch.mlp_bias = config.get_bool("mlp_bias", false);
}

void write_biases(const ArchSpec& arch, json& config) {
  config["attention_bias"] = arch.qkv_bias;
  config["mlp_bias"] = arch.mlp_bias;
}

/// Layers without RoPE: `no_rope_layers` has 1 for layers with RoPE.
void read_positions(const JsonFields& config, ArchSpec& arch) {
  const int64_t interval = config.get_int("no_rope_layer_interval", 4, 1, kMaxLayers);
  const std::vector<int64_t> turns = config.get_ids("no_rope_layers");
  if (!turns.empty() && turns.size() != arch.layers.size())
    config.fail("no_rope_layers", fmt::format("a list of {} numbers", arch.layers.size()));
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    const bool rotates =
        turns.empty() ? (static_cast<int64_t>(i) + 1) % interval != 0 : turns[i] != 0;
    arch.layers[i].rope = rotates ? 0 : -1;
  }
}

/// Metadata lack this: in llama.cpp every fourth layer has no RoPE.
void read_positions_gguf(const JsonFields& /*meta*/, ArchSpec& arch) {
  for (size_t i = 3; i < arch.layers.size(); i += 4) arch.layers[i].rope = -1;
}

void read_smollm3(const JsonFields& config, ArchSpec& arch) {
  read_biases(config, arch);
  read_positions(config, arch);
  const bool slides = config.get_bool("use_sliding_window", false);
  const int64_t window = slides ? config.get_int("sliding_window", 0, 1, kMaxSize) : 0;
  read_layer_types(config, arch, window, [&](int64_t layer) {
    return window > 0 && arch.layers[static_cast<size_t>(layer)].rope < 0;
  });
}

void write_smollm3(const ArchSpec& arch, json& config) {
  write_biases(arch, config);
  write_layer_types(arch, config);
  config["use_sliding_window"] = window_of(arch) > 0;
  write_window(arch, config);
  config["no_rope_layers"] = json::array();
  for (const LayerSpec& layer : arch.layers)
    config["no_rope_layers"].push_back(layer.rope < 0 ? 0 : 1);
}

}  // namespace

const Family kLlama = {
    .model_type = "llama",
    .model_class = "LlamaForCausalLM",
    .read = read_biases,
    .write = write_biases,
    .gguf = "llama",
    .gguf_interleaves = true,
    .gguf_is_70b =
        [](const ArchSpec& arch) {
          return arch.num_layers == 80 && arch.num_heads != arch.num_kv_heads;
        },
};

const Family kMistral = {
    .model_type = "mistral",
    .model_class = "MistralForCausalLM",
    .defaults = R"({"sliding_window": 4096, "max_position_embeddings": 131072})",
    .read = read_window,
    .write = write_window,
    .gguf_relative = &kLlama,
};

const Family kSmolLm3 = {
    .model_type = "smollm3",
    .model_class = "SmolLM3ForCausalLM",
    .defaults = R"({"rope_theta": 2000000.0, "tie_word_embeddings": true,
                    "max_position_embeddings": 32768})",
    .read = read_smollm3,
    .write = write_smollm3,
    .gguf = "smollm3",
    .gguf_interleaves = true,
    .read_gguf = read_positions_gguf,
};

}  // namespace sftrun::spec
