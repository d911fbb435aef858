#include "../arch_checks.h"
#include "../family.h"

/// Qwen 2, 2.5 (biases of q, k, v) and 3 (norms of q and k instead).
namespace sftrun::spec {
namespace {

using nlohmann::json;

/// Windows start at layer `max_window_layers`, and only if `use_sliding_window` is set.
void read_upper_windows(const JsonFields& config, ArchSpec& arch) {
  if (!config.get_bool("use_sliding_window", false)) return;
  const int64_t window = config.get_int("sliding_window", 0, 1, kMaxSize),
                first = config.get_int("max_window_layers", 28, 0, kMaxLayers);
  read_layer_types(config, arch, window,
                   [&](int64_t layer) { return window > 0 && layer >= first; });
}

void write_windows(const ArchSpec& arch, json& config) {
  config["use_sliding_window"] = window_of(arch) > 0;
  if (window_of(arch) == 0) return;
  config["sliding_window"] = window_of(arch);
  write_layer_types(arch, config);
}

void qwen2_traits(ArchSpec& arch) {
  arch.qkv_bias = true;
}

void qwen3_traits(ArchSpec& arch) {
  arch.qk_norm = QkNorm::kPerHead;
}

void read_qwen3(const JsonFields& config, ArchSpec& arch) {
  read_attention_bias(config, arch);
  read_upper_windows(config, arch);
}

void write_qwen3(const ArchSpec& arch, json& config) {
  config["attention_bias"] = arch.qkv_bias;
  write_windows(arch, config);
}

}  // namespace

const Family kQwen2 = {
    .model_type = "qwen2",
    .model_class = "Qwen2ForCausalLM",
    .defaults = R"({"sliding_window": 4096, "max_position_embeddings": 32768})",
    .traits = qwen2_traits,
    .read = read_upper_windows,
    .write = write_windows,
    .gguf = "qwen2",
    .gguf_of_axes = {.name = "qwen2vl"},
    .gguf_is_70b = [](const ArchSpec& arch) { return arch.num_layers == 80; },
};

const Family kQwen3 = {
    .model_type = "qwen3",
    .model_class = "Qwen3ForCausalLM",
    .defaults = R"({"sliding_window": 4096, "max_position_embeddings": 32768, "head_dim": 128})",
    .traits = qwen3_traits,
    .read = read_qwen3,
    .write = write_qwen3,
    .gguf = "qwen3",
    .gguf_of_axes = {.name = "qwen3vl", .alternates = true, .has_deepstack = true},
};

}  // namespace sftrun::spec
