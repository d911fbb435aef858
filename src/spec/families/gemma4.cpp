#include "../arch_checks.h"
#include "../family.h"
#include "sftrun/core/error.h"

/// Gemma 4 text: like Gemma 3, but norms multiply by their weight. Layers with full attention have
/// another head size and may use their keys as values. Later layers may reuse the keys and values
/// of an earlier one, layers may have per-layer embeddings, and experts may run beside the dense
/// MLP.
namespace sftrun::spec {
namespace {

using nlohmann::json;

void gemma4_traits(ArchSpec& arch) {
  arch.norms = NormPlacement::kBoth;
  arch.activation = Activation::kGeluTanh;
  arch.qk_norm = QkNorm::kPerHead;
  arch.value_norm = true;
  arch.layer_scalar = true;
  arch.attention_scale = 1;
  arch.mixture.beside_dense = true;
  arch.mixture.has_aux_loss = false;
  arch.mixture.files = ExpertFiles::kWhole;
}

/// The last layer always has full attention, as in transformers; the list is ignored for it.
void read_layer_windows(const JsonFields& config, ArchSpec& arch) {
  const int64_t window = config.get_int("sliding_window", 512, 1, kMaxSize);
  read_layer_types(config, arch, window, [](int64_t layer) { return (layer + 1) % 6 != 0; });
  arch.layers.back().window = 0;
}

/// transformers 5 writes per-layer values under `per_layer_config`; files on the hub have two keys
/// for all layers with full attention.
void read_heads(const JsonFields& config, ArchSpec& arch) {
  const json* own = config.find("per_layer_config");
  const bool value_is_key = config.get_bool("attention_k_eq_v", false);
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    LayerSpec& layer = arch.layers[i];
    if (layer.window > 0) continue;
    layer.value_is_key = value_is_key;
    // Default if the key is missing: the class's 512; with `per_layer_config` the model's head_dim.
    layer.head_dim =
        config.get_int("global_head_dim", own != nullptr ? arch.head_dim : 512, 1, kMaxSize);
    if (value_is_key)
      layer.num_kv_heads = config.get_int("num_global_key_value_heads", 0, 1, kMaxSize);
    if (own == nullptr || !own->is_object()) continue;
    const auto found = own->find(std::to_string(i));
    if (found == own->end()) continue;
    const JsonFields fields(*found, config.where(), {}, fmt::format("per_layer_config.{}.", i));
    layer.head_dim = fields.get_int("head_dim", arch.head_dim, 1, kMaxSize);
    layer.num_kv_heads = fields.get_int("num_key_value_heads", arch.num_kv_heads, 1, kMaxSize);
  }
}

/// The last `count` layers reuse the keys and values of the last earlier layer with the same
/// window.
void share_keys(ArchSpec& arch, int64_t count, const std::string& where) {
  const int64_t first = arch.num_layers - count;
  for (int64_t i = first; i < arch.num_layers; ++i) {
    LayerSpec& layer = arch.layers[static_cast<size_t>(i)];
    for (int64_t j = 0; j < first; ++j) {
      const LayerSpec& other = arch.layers[static_cast<size_t>(j)];
      if ((other.window > 0) == (layer.window > 0)) layer.keys_of = j;
    }
    if (layer.keys_of >= 0) continue;
    throw DataError(fmt::format("layer {} reuses the keys of an earlier layer, but no layer before "
                                "{} has the same kind of attention",
                                i, first),
                    where);
  }
}

void refuse_looking_ahead(const JsonFields& config) {
  const json* ahead = config.find("use_bidirectional_attention");
  // "vision": bidirectional within an image only, so text is not affected.
  if (!ahead || *ahead == false || *ahead == "vision") return;
  throw DataError("`use_bidirectional_attention` is not supported", config.where(),
                  "such a model computes text embeddings and does not generate text");
}

void read_experts(const JsonFields& config, ArchSpec& arch) {
  if (!config.get_bool("enable_moe_block", false)) return;
  arch.mixture.num_experts = config.require_int("num_experts", 1, kMaxSize);
  arch.mixture.top_k = config.require_int("top_k_experts", 1, arch.mixture.num_experts);
  arch.mixture.intermediate_size = config.require_int("moe_intermediate_size", 1, kMaxSize);
  make_every_layer_sparse(arch);
}

void read_gemma4(const JsonFields& config, ArchSpec& arch) {
  refuse_looking_ahead(config);
  read_attention_bias(config, arch);
  arch.embedding_scale = gemma_embedding_scale(arch);
  arch.final_softcap = config.get_positive("final_logit_softcapping", 0);
  read_layer_windows(config, arch);
  read_heads(config, arch);
  const int64_t shared = config.get_int("num_kv_shared_layers", 0, 0, arch.num_layers - 1);
  share_keys(arch, shared, config.where());
  if (config.get_bool("use_double_wide_mlp", false)) {
    for (LayerSpec& layer : arch.layers)
      layer.intermediate_size = layer.keys_of >= 0 ? 2 * arch.intermediate_size : 0;
  }
  arch.per_layer_size = config.get_int("hidden_size_per_layer_input", 0, 0, kMaxSize);
  if (arch.per_layer_size > 0)
    arch.per_layer_vocab = config.require_int("vocab_size_per_layer_input", 1, kMaxSize);
  read_experts(config, arch);
}

const LayerSpec& any_full_layer(const ArchSpec& arch) {
  for (const LayerSpec& layer : arch.layers) {
    if (layer.window == 0) return layer;
  }
  invariant_failed(__FILE__, __LINE__, "the last layer has full attention");
}

void write_gemma4(const ArchSpec& arch, json& config) {
  config["attention_bias"] = arch.qkv_bias;
  config["final_logit_softcapping"] =
      arch.final_softcap > 0 ? json(arch.final_softcap) : json(nullptr);
  if (window_of(arch) > 0) config["sliding_window"] = window_of(arch);
  write_layer_types(arch, config);
  const LayerSpec& full = any_full_layer(arch);
  config["attention_k_eq_v"] = full.value_is_key;
  config["global_head_dim"] = full.head_dim > 0 ? full.head_dim : arch.head_dim;
  if (full.value_is_key)
    config["num_global_key_value_heads"] =
        full.num_kv_heads > 0 ? full.num_kv_heads : arch.num_kv_heads;
  int64_t shared = 0, wide = 0;
  for (const LayerSpec& layer : arch.layers) {
    shared += layer.keys_of >= 0 ? 1 : 0;
    wide += layer.intermediate_size > 0 ? 1 : 0;
  }
  config["num_kv_shared_layers"] = shared;
  config["use_double_wide_mlp"] = wide > 0;
  config["hidden_size_per_layer_input"] = arch.per_layer_size;
  if (arch.per_layer_size > 0) config["vocab_size_per_layer_input"] = arch.per_layer_vocab;
  config["enable_moe_block"] = arch.mixture.num_experts > 0;
  if (arch.mixture.num_experts == 0) return;
  config["num_experts"] = arch.mixture.num_experts;
  config["top_k_experts"] = arch.mixture.top_k;
  config["moe_intermediate_size"] = arch.mixture.intermediate_size;
}

/// The common keys gave the sizes of layers with full attention. llama.cpp uses the released
/// models' soft cap of the logits if the key is missing. Whether these layers use their keys as
/// values follows from the list of tensors; the loader sets it.
void read_gemma4_gguf(const JsonFields& meta, ArchSpec& arch) {
  arch.embedding_scale = gemma_embedding_scale(arch);
  arch.final_softcap = meta.get_positive("final_logit_softcapping", 30);
  const int64_t window = meta.require_int("attention.sliding_window", 1, kMaxSize),
                full_head_dim = arch.head_dim;
  arch.head_dim = meta.get_int("attention.key_length_swa", arch.head_dim, 1, kMaxSize);
  arch.ropes[0].type = RopeType::kProportional;
  arch.ropes.push_back({.theta = meta.get_positive("rope.freq_base_swa", 10000.0),
                        .rotary_dim = arch.head_dim,
                        .max_position_embeddings = arch.max_position_embeddings});
  const std::vector<bool> slides = read_flags_gguf(meta, "attention.sliding_window_pattern", arch);
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    LayerSpec& layer = arch.layers[i];
    layer.window = slides[i] ? window : 0;
    layer.rope = slides[i] ? 1 : 0;
    if (!slides[i]) layer.head_dim = full_head_dim;
  }
  share_keys(arch, meta.get_int("attention.shared_kv_layers", 0, 0, arch.num_layers - 1),
             meta.where());
  arch.per_layer_size = meta.get_int("embedding_length_per_layer_input", 0, 0, kMaxSize);
  arch.per_layer_vocab = arch.per_layer_size > 0 ? arch.vocab_size : 0;
  if (meta.get_int("expert_count", 0, 0, kMaxSize) == 0) return;
  read_expert_counts(meta, arch);
  arch.mixture.intermediate_size = meta.require_int("expert_feed_forward_length", 1, kMaxSize);
}

void write_gemma4_gguf(const ArchSpec& arch, GgufMetadataWriter& meta) {
  const LayerSpec& full = any_full_layer(arch);
  const int64_t full_head_dim = full.head_dim > 0 ? full.head_dim : arch.head_dim;
  meta.set("attention.key_length", full_head_dim);
  meta.set("attention.value_length", full_head_dim);
  meta.set("attention.key_length_swa", arch.head_dim);
  meta.set("attention.value_length_swa", arch.head_dim);
  meta.set("rope.dimension_count", full_head_dim);
  meta.set("rope.dimension_count_swa", arch.head_dim);
  if (arch.ropes.size() > 1) meta.set("rope.freq_base_swa", arch.ropes[1].theta);
  if (arch.final_softcap > 0) meta.set("final_logit_softcapping", arch.final_softcap);
  meta.set("attention.sliding_window", window_of(arch));
  json pattern = json::array();
  int64_t shared = 0;
  for (const LayerSpec& layer : arch.layers) {
    pattern.push_back(layer.window > 0);
    shared += layer.keys_of >= 0 ? 1 : 0;
  }
  meta.set("attention.sliding_window_pattern", pattern);
  meta.set("attention.shared_kv_layers", shared);
  meta.set("embedding_length_per_layer_input", arch.per_layer_size);
  if (arch.mixture.num_experts > 0)
    meta.set("expert_feed_forward_length", arch.mixture.intermediate_size);
}

}  // namespace

const Family kGemma4 = {
    .model_type = "gemma4_text",
    .model_class = "Gemma4ForCausalLM",
    .score_class = "-",
    .defaults =
        R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 30, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 256, "max_position_embeddings": 131072, "tie_word_embeddings": true,
            "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512,
            "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
            "bos_token_id": 2, "eos_token_id": 1,
            "rope_parameters": {
              "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
              "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                 "rope_theta": 1000000.0}}})",
    .may_be_mixture = true,
    .partial_rotary = true,
    .activation_key = "hidden_activation",
    .theta_by_layer_type = RopeThetas{.full = 1'000'000.0, .sliding = 10'000.0},
    .traits = gemma4_traits,
    .read = read_gemma4,
    .write = write_gemma4,
    .gguf = "gemma4",
    .read_gguf = read_gemma4_gguf,
    .write_gguf = write_gemma4_gguf,
    .gguf_keeps_merges = true,
};

}  // namespace sftrun::spec
