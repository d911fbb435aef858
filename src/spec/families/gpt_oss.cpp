#include "../arch_checks.h"
#include "../family.h"

/// gpt-oss: every MLP is a mixture of experts with biases and a clamped activation; attention sinks
/// in every head; sliding windows in every other layer.
namespace sftrun::spec {
namespace {

using nlohmann::json;

bool slides(int64_t layer) {
  return layer % 2 == 0;
}

void gpt_oss_traits(ArchSpec& arch) {
  arch.attention_sinks = true;
  arch.mixture.bias = true;
  arch.mixture.files = ExpertFiles::kGptOss;
  arch.activation = Activation::kClampedSwiglu;
}

void read_gpt_oss(const JsonFields& config, ArchSpec& arch) {
  arch.activation = Activation::kClampedSwiglu;  // `hidden_act` is ignored, as in transformers
  arch.swiglu_alpha = config.require_positive("swiglu_alpha");
  arch.swiglu_limit = config.require_positive("swiglu_limit");
  read_attention_bias(config, arch);
  read_mixture(config, arch);
  arch.mixture.intermediate_size = arch.intermediate_size;
  make_every_layer_sparse(arch);
  read_layer_types(config, arch, config.get_int("sliding_window", 0, 1, kMaxSize), slides);
}

void write_gpt_oss(const ArchSpec& arch, json& config) {
  config["swiglu_alpha"] = arch.swiglu_alpha;
  config["swiglu_limit"] = arch.swiglu_limit;
  config["attention_bias"] = arch.qkv_bias;
  write_mixture(arch, config);
  config["sliding_window"] = window_of(arch);
  write_layer_types(arch, config);
}

/// GGUF lacks the activation's parameters and YaRN's `truncate`; they are fixed.
void read_gpt_oss_gguf(const JsonFields& meta, ArchSpec& arch) {
  read_expert_counts(meta, arch);
  arch.mixture.intermediate_size = meta.require_int("expert_feed_forward_length", 1, kMaxSize);
  read_windows_gguf(meta, arch, meta.require_int("attention.sliding_window", 1, kMaxSize), 2);
  arch.ropes[0].truncate = false;
}

void write_gpt_oss_gguf(const ArchSpec& arch, GgufMetadataWriter& meta) {
  meta.set("expert_feed_forward_length", arch.mixture.intermediate_size);
  write_windows_gguf(arch, meta, 2);
}

}  // namespace

const Family kGptOss = {
    .model_type = "gpt_oss",
    .model_class = "GptOssForCausalLM",
    .defaults = R"({"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
                    "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
                    "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
                    "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
                    "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": true,
                    "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0,
                                        "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                        "truncate": false,
                                        "original_max_position_embeddings": 4096}})",
    .is_mixture = true,
    .reads_mxfp4 = true,
    .traits = gpt_oss_traits,
    .read = read_gpt_oss,
    .write = write_gpt_oss,
    .gguf = "gpt-oss",
    .gguf_feed_forward_norm = "post_attention_norm",
    .read_gguf = read_gpt_oss_gguf,
    .write_gguf = write_gpt_oss_gguf,
};

}  // namespace sftrun::spec
