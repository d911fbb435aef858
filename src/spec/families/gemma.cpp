#include <cmath>

#include "../arch_checks.h"
#include "../family.h"
#include "sftrun/core/error.h"

/// Gemma 2 and 3: norms before and after, which multiply by 1 + weight; a scaled embedding; GELU;
/// sliding windows in some layers. Gemma 2 has soft caps; Gemma 3 has norms of q and k and a
/// separate RoPE for windowed layers.
namespace sftrun::spec {
namespace {

using nlohmann::json;

void gemma_traits(ArchSpec& arch) {
  arch.norms = NormPlacement::kBoth;
  arch.norm_adds_one = true;
  arch.activation = Activation::kGeluTanh;
}

void gemma3_traits(ArchSpec& arch) {
  gemma_traits(arch);
  arch.qk_norm = QkNorm::kPerHead;
}

void read_gemma(const JsonFields& config, ArchSpec& arch) {
  if (config.get_bool("use_bidirectional_attention", false)) {
    throw DataError("`use_bidirectional_attention` is not supported", config.where(),
                    "such a model computes text embeddings and does not generate text");
  }
  read_attention_bias(config, arch);
  arch.embedding_scale = gemma_embedding_scale(arch);
  arch.attention_scale = 1 / std::sqrt(config.require_positive("query_pre_attn_scalar"));
  arch.attention_softcap = config.get_positive("attn_logit_softcapping", 0);
  arch.final_softcap = config.get_positive("final_logit_softcapping", 0);
}

void write_gemma(const ArchSpec& arch, json& config) {
  const auto or_null = [](double value) { return value > 0 ? json(value) : json(nullptr); };
  config["attention_bias"] = arch.qkv_bias;
  config["query_pre_attn_scalar"] = std::lround(1 / (arch.attention_scale * arch.attention_scale));
  config["attn_logit_softcapping"] = or_null(arch.attention_softcap);
  config["final_logit_softcapping"] = or_null(arch.final_softcap);
  config["sliding_window"] = window_of(arch);
  write_layer_types(arch, config);
}

void read_gemma2(const JsonFields& config, ArchSpec& arch) {
  read_gemma(config, arch);
  read_layer_types(config, arch, config.get_int("sliding_window", 0, 1, kMaxSize),
                   [](int64_t layer) { return layer % 2 == 0; });
}

void read_gemma3(const JsonFields& config, ArchSpec& arch) {
  read_gemma(config, arch);
  const int64_t window = config.get_int("sliding_window", 0, 1, kMaxSize),
                period = config.get_int("sliding_window_pattern", 6, 1, kMaxLayers);
  read_layer_types(config, arch, window,
                   [&](int64_t layer) { return window > 0 && (layer + 1) % period != 0; });
}

/// Metadata lack the attention scale. llama.cpp derives it from the number of layers: models of 27
/// billion parameters do not use head_dim.
void read_gemma_gguf(const JsonFields& meta, ArchSpec& arch, int64_t layers_of_27b) {
  arch.embedding_scale = gemma_embedding_scale(arch);
  const int64_t divisor =
      arch.num_layers == layers_of_27b ? arch.hidden_size / arch.num_heads : arch.head_dim;
  arch.attention_scale = 1 / std::sqrt(static_cast<double>(divisor));
  arch.attention_softcap = meta.get_positive("attn_logit_softcapping", 0);
  arch.final_softcap = meta.get_positive("final_logit_softcapping", 0);
}

void read_gemma2_gguf(const JsonFields& meta, ArchSpec& arch) {
  read_gemma_gguf(meta, arch, 46);
  read_windows_gguf(meta, arch, meta.get_int("attention.sliding_window", 4096, 1, kMaxSize), 2);
}

void read_gemma3_gguf(const JsonFields& meta, ArchSpec& arch) {
  read_gemma_gguf(meta, arch, 62);
  // Without the key no layer has a window.
  read_windows_gguf(meta, arch, meta.get_int("attention.sliding_window", 0, 0, kMaxSize), 6);
  RopeSpec sliding{.theta = meta.get_positive("rope.freq_base_swa", 10000.0),
                   .rotary_dim = arch.head_dim,
                   .max_position_embeddings = arch.max_position_embeddings};
  arch.ropes.push_back(sliding);
  for (LayerSpec& layer : arch.layers) layer.rope = layer.window > 0 ? 1 : 0;
}

void write_caps(const ArchSpec& arch, GgufMetadataWriter& meta) {
  if (arch.attention_softcap > 0) meta.set("attn_logit_softcapping", arch.attention_softcap);
  if (arch.final_softcap > 0) meta.set("final_logit_softcapping", arch.final_softcap);
}

void write_gemma2_gguf(const ArchSpec& arch, GgufMetadataWriter& meta) {
  write_caps(arch, meta);
  write_windows_gguf(arch, meta, 2);
}

void write_gemma3_gguf(const ArchSpec& arch, GgufMetadataWriter& meta) {
  write_caps(arch, meta);
  write_windows_gguf(arch, meta, 6);
  if (arch.ropes.size() > 1) meta.set("rope.freq_base_swa", arch.ropes[1].theta);
}

}  // namespace

const Family kGemma2 = {
    .model_type = "gemma2",
    .model_class = "Gemma2ForCausalLM",
    .defaults = R"({"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
                    "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
                    "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": true,
                    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
                    "sliding_window": 4096, "attn_logit_softcapping": 50.0,
                    "final_logit_softcapping": 30.0, "bos_token_id": 2, "eos_token_id": 1})",
    .activation_key = "hidden_activation",
    .traits = gemma_traits,
    .read = read_gemma2,
    .write = write_gemma,
    .gguf = "gemma2",
    .read_gguf = read_gemma2_gguf,
    .write_gguf = write_gemma2_gguf,
    .gguf_reads_head = false,
};

const Family kGemma3 = {
    .model_type = "gemma3_text",
    .model_class = "Gemma3ForCausalLM",
    .score_class = "Gemma3TextForSequenceClassification",
    .defaults = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                    "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
                    "head_dim": 256, "max_position_embeddings": 131072, "tie_word_embeddings": true,
                    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
                    "sliding_window": 4096, "bos_token_id": 2, "eos_token_id": 1})",
    .activation_key = "hidden_activation",
    .theta_by_layer_type = RopeThetas{.full = 1'000'000.0, .sliding = 10'000.0},
    .traits = gemma3_traits,
    .read = read_gemma3,
    .write = write_gemma,
    .gguf = "gemma3",
    .read_gguf = read_gemma3_gguf,
    .write_gguf = write_gemma3_gguf,
};

}  // namespace sftrun::spec
