#include <algorithm>

#include "../arch_checks.h"
#include "../family.h"
#include "sftrun/core/error.h"

/// Mixtures of experts: Mixtral is Mistral, Qwen 3 MoE is Qwen 3, with experts as MLP.
namespace sftrun::spec {
namespace {

using nlohmann::json;

constexpr int64_t kMaxExperts = 1 << 16;

/// transformers 5 writes `num_local_experts`, older files `num_experts`.
int64_t read_num_experts(const JsonFields& config) {
  const char* key = config.has("num_local_experts") ? "num_local_experts" : "num_experts";
  return config.require_int(key, 1, kMaxExperts);
}

/// 0.001 if missing, as in transformers; 0 disables the loss.
double read_coef(const JsonFields& config) {
  constexpr const char* kKey = "router_aux_loss_coef";
  const json* coef = config.find(kKey);
  return coef && *coef == 0.0 ? 0.0 : config.get_positive(kKey, 0.001);
}

}  // namespace

void read_mixture(const JsonFields& config, ArchSpec& arch) {
  arch.mixture.num_experts = read_num_experts(config);
  arch.mixture.top_k = config.require_int("num_experts_per_tok", 1, arch.mixture.num_experts);
  if (config.get_bool("output_router_logits", false))
    arch.mixture.aux_loss_coef = read_coef(config);
}

void write_mixture(const ArchSpec& arch, json& config) {
  config["num_local_experts"] = arch.mixture.num_experts;
  config["num_experts_per_tok"] = arch.mixture.top_k;
  if (!arch.mixture.aux_loss_coef) return;
  config["output_router_logits"] = true;
  config["router_aux_loss_coef"] = *arch.mixture.aux_loss_coef;
}

void read_expert_counts(const JsonFields& meta, ArchSpec& arch) {
  arch.mixture.num_experts = meta.require_int("expert_count", 1, kMaxExperts);
  arch.mixture.top_k = meta.require_int("expert_used_count", 1, arch.mixture.num_experts);
  make_every_layer_sparse(arch);
}

namespace {

void mixtral_traits(ArchSpec& arch) {
  arch.mixture.files = ExpertFiles::kMixtral;
}

void read_mixtral(const JsonFields& config, ArchSpec& arch) {
  read_window(config, arch);
  read_mixture(config, arch);
  if (config.has("router_jitter_noise") && *config.find("router_jitter_noise") != 0.0) {
    throw DataError("`router_jitter_noise` is not supported", config.where(),
                    "set it to 0, as in released models");
  }
  arch.mixture.intermediate_size = arch.intermediate_size;
  make_every_layer_sparse(arch);
}

void write_mixtral(const ArchSpec& arch, json& config) {
  write_mixture(arch, config);
  write_window(arch, config);
}

void qwen3_moe_traits(ArchSpec& arch) {
  arch.qk_norm = QkNorm::kPerHead;
}

void read_qwen3_moe(const JsonFields& config, ArchSpec& arch) {
  read_attention_bias(config, arch);
  if (config.get_bool("use_sliding_window", false)) read_window(config, arch);
  read_mixture(config, arch);
  arch.mixture.intermediate_size = config.require_int("moe_intermediate_size", 1, kMaxSize);
  arch.mixture.normalise = config.get_bool("norm_topk_prob", false);
  const int64_t step = config.get_int("decoder_sparse_step", 1, 1, kMaxLayers);
  const std::vector<int64_t> dense = config.get_ids("mlp_only_layers");
  for (int64_t i = 0; i < arch.num_layers; ++i) {
    const bool is_dense = std::find(dense.begin(), dense.end(), i) != dense.end();
    arch.layers[static_cast<size_t>(i)].sparse = !is_dense && (i + 1) % step == 0;
  }
}

void write_qwen3_moe(const ArchSpec& arch, json& config) {
  config["attention_bias"] = arch.qkv_bias;
  config["use_sliding_window"] = window_of(arch) > 0;
  if (window_of(arch) > 0) config["sliding_window"] = window_of(arch);
  write_mixture(arch, config);
  config["num_experts"] = arch.mixture.num_experts;  // for transformers 4
  config["moe_intermediate_size"] = arch.mixture.intermediate_size;
  config["norm_topk_prob"] = arch.mixture.normalise;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = json::array();
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    if (!arch.layers[i].sparse) config["mlp_only_layers"].push_back(i);
  }
}

/// llama.cpp always normalises the experts' weights and makes every layer a mixture.
void read_qwen3_moe_gguf(const JsonFields& meta, ArchSpec& arch) {
  read_expert_counts(meta, arch);
  arch.mixture.intermediate_size = meta.require_int("expert_feed_forward_length", 1, kMaxSize);
}

void write_qwen3_moe_gguf(const ArchSpec& arch, GgufMetadataWriter& meta) {
  meta.set("expert_feed_forward_length", arch.mixture.intermediate_size);
}

void read_mixtral_gguf(const JsonFields& meta, ArchSpec& arch) {
  read_expert_counts(meta, arch);
  arch.mixture.intermediate_size = arch.intermediate_size;
}

}  // namespace

const Family kMixtral = {
    .model_type = "mixtral",
    .model_class = "MixtralForCausalLM",
    .defaults = R"({"max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
                    "rope_theta": 1000000.0, "num_key_value_heads": 8,
                    "num_local_experts": 8, "num_experts_per_tok": 2})",
    .is_mixture = true,
    .traits = mixtral_traits,
    .read = read_mixtral,
    .write = write_mixtral,
    .gguf = "llama",
    .gguf_interleaves = true,
    .read_gguf = read_mixtral_gguf,
};

const Family kQwen3Moe = {
    .model_type = "qwen3_moe",
    .model_class = "Qwen3MoeForCausalLM",
    .defaults = R"({"max_position_embeddings": 32768, "num_key_value_heads": 4,
                    "num_experts_per_tok": 8, "moe_intermediate_size": 768})",
    .is_mixture = true,
    .traits = qwen3_moe_traits,
    .read = read_qwen3_moe,
    .write = write_qwen3_moe,
    .gguf = "qwen3moe",
    .gguf_of_axes = {.name = "qwen3vlmoe", .alternates = true, .has_deepstack = true},
    .read_gguf = read_qwen3_moe_gguf,
    .write_gguf = write_qwen3_moe_gguf,
};

}  // namespace sftrun::spec
