#include "../arch_checks.h"
#include "../family.h"

/// OLMo 2: norms after attention and MLP, and norms over all of q and k. OLMo 3: also sliding
/// windows in three layers of four.
namespace sftrun::spec {
namespace {

using nlohmann::json;

void olmo_traits(ArchSpec& arch) {
  arch.norms = NormPlacement::kAfter;
  arch.qk_norm = QkNorm::kWhole;
}

void write_olmo2(const ArchSpec& arch, json& config) {
  config["attention_bias"] = arch.qkv_bias;
}

void read_olmo3(const JsonFields& config, ArchSpec& arch) {
  read_attention_bias(config, arch);
  read_layer_types(config, arch, config.get_int("sliding_window", 0, 1, kMaxSize),
                   [](int64_t layer) { return (layer + 1) % 4 != 0; });
}

void write_olmo3(const ArchSpec& arch, json& config) {
  write_olmo2(arch, config);
  config["sliding_window"] = window_of(arch);
  write_layer_types(arch, config);
}

/// GGUF stores OLMo 3 as olmo2 with a window. Layers with the window (three of four if no key lists
/// them) use RoPE without scaling.
void read_olmo_gguf(const JsonFields& meta, ArchSpec& arch) {
  const int64_t window = meta.get_int("attention.sliding_window", 0, 0, kMaxSize);
  if (window == 0) return;
  arch.family = kOlmo3.model_type;
  RopeSpec sliding = arch.ropes[0];
  sliding.type = RopeType::kDefault;
  sliding.theta = meta.get_positive("rope.freq_base_swa", sliding.theta);
  arch.ropes.push_back(sliding);
  read_windows_gguf(meta, arch, window, 4);
  for (LayerSpec& layer : arch.layers) layer.rope = layer.window > 0 ? 1 : 0;
}

void write_olmo_gguf(const ArchSpec& arch, GgufMetadataWriter& meta) {
  if (window_of(arch) == 0) return;
  write_windows_gguf(arch, meta, 4);
  if (arch.ropes.size() > 1) meta.set("rope.freq_base_swa", arch.ropes[1].theta);
}

}  // namespace

const Family kOlmo2 = {
    .model_type = "olmo2",
    .model_class = "Olmo2ForCausalLM",
    .defaults = R"({"rms_norm_eps": 1e-5})",
    .traits = olmo_traits,
    .read = read_attention_bias,
    .write = write_olmo2,
    .gguf = "olmo2",
    .read_gguf = read_olmo_gguf,
    .write_gguf = write_olmo_gguf,
};

const Family kOlmo3 = {
    .model_type = "olmo3",
    .model_class = "Olmo3ForCausalLM",
    .defaults = R"({"rms_norm_eps": 1e-5, "sliding_window": 4096})",
    .theta_by_layer_type = RopeThetas{.full = 500'000.0, .sliding = 500'000.0},
    .traits = olmo_traits,
    .read = read_olmo3,
    .write = write_olmo3,
    .gguf_relative = &kOlmo2,
};

}  // namespace sftrun::spec
