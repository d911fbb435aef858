#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/core/file_layout.h"

/// A model family is data: what the one `Decoder` needs to know to run a checkpoint.
namespace sftrun::spec {

/// kProportional (Gemma 4): frequencies of the whole head, of which only the first ones turn.
enum class RopeType { kDefault, kLinear, kDynamic, kYarn, kLlama3, kLongRope, kProportional };

/// Rotary position embedding (RoFormer, arXiv:2104.09864) and its scaling variants, named as in
/// transformers' modeling_rope_utils.py.
struct RopeSpec {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  int64_t rotary_dim = 0;  ///< channels of a head that turn, the first ones; the others stay
  int64_t max_position_embeddings = 0;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;          ///< 0: max_position_embeddings
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3
  double beta_fast = 32.0, beta_slow = 1.0;              ///< yarn
  std::optional<double> attention_factor;                ///< yarn, longrope
  std::optional<double> mscale, mscale_all_dim;          ///< yarn
  bool truncate = true;                                  ///< yarn
  double partial = 1.0;                                  ///< proportional: the part that turns
  /// longrope: each frequency is divided by its entry, [rotary_dim / 2]; long ones serve sequences
  /// of more than original_max_position_embeddings.
  std::vector<float> short_factor, long_factor;
  /// GGUF's `rope_freqs.weight` where no named type describes it: each frequency is divided by its
  /// entry, after the scaling of `type`. Empty, or [rotary_dim / 2].
  std::vector<float> divisors;

  /// Whether the frequencies depend on how long the sequence is.
  bool by_length() const { return type == RopeType::kDynamic || type == RopeType::kLongRope; }
};

/// kClampedSwiglu: gpt-oss's, with `ArchSpec::swiglu_alpha` and `swiglu_limit`.
enum class Activation { kSilu, kGeluTanh, kClampedSwiglu };

/// Where a layer norms: before attention and feed-forward (Llama), after them (OLMo 2), or both
/// (Gemma).
enum class NormPlacement { kBefore, kAfter, kBoth };

/// RMS norms of queries and keys before their rotation: of each head (Qwen 3), or of all heads
/// together (OLMo 2).
enum class QkNorm { kNone, kPerHead, kWhole };

/// What lets tokens see one another.
enum class Mixer { kAttention, kDeltaNet };

/// What differs from layer to layer.
struct LayerSpec {
  Mixer mixer = Mixer::kAttention;
  int64_t window = 0;   ///< keys that a query sees, its own included; 0: all before it
  int rope = 0;         ///< index in `ArchSpec::ropes`; -1: no position embedding
  bool sparse = false;  ///< its feed-forward half is a mixture of experts
  /// Where it is not the model's; 0: it is.
  int64_t head_dim = 0, num_kv_heads = 0, intermediate_size = 0;
  bool value_is_key = false;  ///< values are what k_proj gives, too (before its norm)
  int64_t keys_of = -1;       ///< the layer whose keys and values it reads; -1: its own
};

/// A gated delta net (arXiv:2412.06464): consecutive value heads share a key head.
struct DeltaNetSpec {
  int64_t num_key_heads = 0, num_value_heads = 0, key_dim = 0, value_dim = 0;
  int64_t conv_kernel = 0;  ///< tokens that a channel's convolution reads, its own included
  int64_t keys() const { return num_key_heads * key_dim; }
  int64_t values() const { return num_value_heads * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
};

/// Where files keep the experts of a layer.
enum class ExpertFiles {
  kEach,     ///< mlp.experts.N.gate_proj, up_proj, down_proj (Qwen 3 MoE)
  kMixtral,  ///< block_sparse_moe.experts.N.w1, w3, w2
  /// mlp.experts.gate_up_proj [experts, in, 2 * inner], the columns of gate and up in turn, and
  /// down_proj [experts, inner, out]; or both as MXFP4 blocks
  kGptOss,
  kWhole,  ///< experts.gate_up_proj [experts, 2 * inner, in] and down_proj, as in memory (Gemma 4)
};

/// Feed-forward halves of many experts, of which a router gives each token a few
/// (arXiv:1701.06538, arXiv:2401.04088).
struct MixtureSpec {
  int64_t num_experts = 0;  ///< 0: the model has no such layers
  int64_t top_k = 0;        ///< experts of a token
  int64_t intermediate_size = 0;
  bool normalise = true;  ///< the chosen experts' weights add up to 1
  bool bias = false;      ///< of the router and of each expert's matrices
  /// Of one more expert that serves every token, as much as a gate of its own says; 0: none.
  int64_t shared_size = 0;
  /// The layer's dense half works beside them, each with norms of its own; the router reads the
  /// layer's hidden states, normed and scaled, and each expert's weight has a factor (Gemma 4).
  bool beside_dense = false;
  /// Whether transformers' class has a load-balancing loss of its routers.
  bool has_aux_loss = true;
  /// Its coefficient where config.json asks for it (`output_router_logits`).
  std::optional<double> aux_loss_coef;
  ExpertFiles files = ExpertFiles::kEach;
};

struct ArchSpec {
  std::string family;  ///< HF model_type: "llama"
  /// What the names of embedding, layers and final norm begin with: "model.", or where the model is
  /// the text part of a larger one what transformers calls that ("model.language_model.").
  std::string prefix = "model.";
  bool is_text_part() const { return prefix != ArchSpec{}.prefix; }
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0, max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  std::vector<RopeSpec> ropes = {{}};
  std::vector<LayerSpec> layers;  ///< [num_layers]
  MixtureSpec mixture;
  DeltaNetSpec delta_net;
  bool tie_word_embeddings = false, qkv_bias = false, o_bias = false, mlp_bias = false;
  bool attention_sinks = false;  ///< each head's scores have one more beside them, of no key
  /// q_proj has twice its rows: of each head its query, then what its answer is gated by.
  bool attention_gate = false;
  bool fused_projections = false;  ///< one matrix for q, k, v and one for gate, up (Phi-3)
  Activation activation = Activation::kSilu;
  double swiglu_alpha = 1.702, swiglu_limit = 7;  ///< kClampedSwiglu
  NormPlacement norms = NormPlacement::kBefore;
  bool norm_adds_one = false;  ///< norms multiply by 1 + weight (Gemma)
  QkNorm qk_norm = QkNorm::kNone;
  bool value_norm = false;  ///< each head's values are normed, without a weight
  /// Channels that every layer gets of each token, from a table of their own and from the embedding
  /// (Gemma 4); 0: none.
  int64_t per_layer_size = 0, per_layer_vocab = 0;
  bool layer_scalar = false;     ///< each layer's output times a number of its own
  double attention_scale = 0;    ///< of scores; 0: 1 / sqrt(head_dim)
  double attention_softcap = 0;  ///< scores become cap * tanh(score / cap); 0: no cap
  double final_softcap = 0;      ///< logits likewise
  double embedding_scale = 1, residual_scale = 1, logit_scale = 1;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;

  /// @param config the parsed config.json   @param where its path, for errors
  /// @throws DataError naming the key that is missing, out of range or unsupported (unknown
  /// families by name,
  ///   with the list of known ones).
  static ArchSpec from_hf_config(const nlohmann::json& config, const std::string& where);
  /// @param meta GGUF metadata as JSON (keys as in the file; arrays may be left out).
  /// `llama.vocab_size` is required here, though files may lack it: the loader supplies it. Biases
  /// and tied embeddings show only in the list of tensors, the loader sets them.
  static ArchSpec from_gguf(const nlohmann::json& meta, const std::string& where);
  /// A config.json that transformers (4 and 5) loads as the same model; the caller adds
  /// `torch_dtype`.
  /// @throws DataError if a rope's `divisors` are set: config.json has no word for them.
  nlohmann::json to_hf_config() const;
};

/// Whether llama.cpp stores the rows of q and k with the two halves of each head interleaved, for
/// its rotation of neighbouring pairs.
bool gguf_interleaves_heads(const ArchSpec& arch);
/// What llama.cpp calls the norm before the feed-forward half: "ffn_norm".
std::string gguf_feed_forward_norm(const ArchSpec& arch);

/// Takes over GGUF's `rope_freqs.weight` (what each frequency is divided by; Llama 3.1 and later):
/// as the llama3 scaling it was computed from where one is found that gives these divisors, else as
/// `divisors`.
/// @throws DataError unless there are rotary_dim / 2 positive finite divisors.
void set_rope_divisors(RopeSpec& rope, const std::vector<float>& divisors,
                       const std::string& where);

/// Takes over GGUF's `rope_factors_short.weight` and `rope_factors_long.weight` (LongRoPE).
/// @throws DataError unless there are rotary_dim / 2 positive finite numbers of each.
void set_longrope_factors(RopeSpec& rope, const std::vector<float>& short_factor,
                          const std::vector<float>& long_factor, const std::string& where);

/// What `TensorSpec` a checkpoint of this architecture holds, in the order of the layers.
enum class TensorRole { kEmbedding, kNorm, kLinear, kBias, kHead, kExperts, kOther, kBuffer };

/// "model.layers.3.self_attn.q_proj"
std::string name_in_layer(const ArchSpec& arch, int64_t layer, const std::string& module);

/// A piece of a tensor under the name that files give it; its values lie together in the whole.
struct TensorPart {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  ///< of its first value in the whole
};

struct TensorSpec {
  std::string name;  ///< HF name: "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kLinear;
  int64_t layer = -1;  ///< -1 outside the layers
  /// Where files hold it in pieces, or under another name; empty: they hold it as it is.
  std::vector<TensorPart> parts = {};
  FileLayout layout = {};  ///< of the whole, where it has no parts
  const std::vector<int64_t>& shape_in_files() const {
    return layout.shape.empty() ? shape : layout.shape;
  }
  int64_t numel() const;
};
std::vector<TensorSpec> tensor_specs(const ArchSpec& arch);

/// A tensor that files of such a model may hold though nothing reads it: the keys of layers that
/// read another's.
bool is_unused(const ArchSpec& arch, const std::string& name);

/// Of one layer.
struct AttentionSizes {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t queries() const { return num_heads * head_dim; }
  int64_t keys() const { return num_kv_heads * head_dim; }
};
AttentionSizes attention_sizes(const ArchSpec& arch, int64_t layer);
int64_t intermediate_size(const ArchSpec& arch, int64_t layer);

/// What a linear module is to its layer.
enum class LinearSlot {
  kQ,
  kK,
  kV,
  kQkv,
  kO,
  kGate,
  kUp,
  kGateUp,
  kDown,
  kRouter,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kSharedRouter,
  kDeltaQkv,
  kDeltaZ,
  kDeltaB,
  kDeltaA,
  kDeltaOut,
  kPerLayerGate,
  kPerLayerProjection,
};

/// The linear modules of a layer by HF name ("q_proj" … "down_proj"), with their sizes.
struct LinearSpec {
  LinearSlot slot = LinearSlot::kQ;
  std::string module;  ///< "self_attn.q_proj"
  int64_t in_features = 0, out_features = 0;
  bool bias = false;
};
std::vector<LinearSpec> layer_linears(const ArchSpec& arch, int64_t layer);

/// The experts' matrices of a layer, each kind in one tensor.
enum class ExpertSlot { kGateUp, kDown };
struct ExpertSpec {
  ExpertSlot slot = ExpertSlot::kGateUp;
  std::string module;  ///< "mlp.experts.gate_up_proj": [experts, out_features, in_features]
  int64_t in_features = 0, out_features = 0;
  bool bias = false;  ///< [experts, out_features], called as the module and "_bias"
};
/// Empty for layers that are not sparse.
std::vector<ExpertSpec> layer_experts(const ArchSpec& arch, int64_t layer);

/// What a tensor that belongs to no linear module is to its layer.
enum class WeightSlot {
  kSinks,
  kDeltaConv,
  kDeltaALog,
  kDeltaDtBias,
  kRouterScale,
  kExpertScale,
  kLayerScalar,
};
struct WeightSpec {
  WeightSlot slot = WeightSlot::kSinks;
  std::string name;  ///< "self_attn.sinks", complete
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kOther;
  std::vector<int64_t> shape_in_files = {};  ///< where it is another
};
std::vector<WeightSpec> layer_weights(const ArchSpec& arch, int64_t layer);

/// What a norm is to its layer.
enum class NormSlot {
  kAttentionIn,
  kQuery,
  kKey,
  kAttentionOut,
  kFeedForwardIn,
  kFeedForwardOut,
  kDenseOut,
  kExpertsIn,
  kExpertsOut,
  kPerLayerOut,
  kDelta,  ///< of each head that a delta net answers; multiplies by its weight in every family
};
struct NormSpec {
  NormSlot slot = NormSlot::kAttentionIn;
  std::string module;  ///< "input_layernorm"
  int64_t size = 0;
};
std::vector<NormSpec> layer_norms(const ArchSpec& arch, int64_t layer);

/// Inverse frequencies [rotary_dim / 2] and the factor that cos and sin are multiplied by; equal to
/// transformers' ROPE_INIT_FUNCTIONS in fp32. `seq_len`, the longest position + 1 seen, matters to
/// "dynamic" and "longrope" only.
struct RopeTable {
  std::vector<float> inv_freq;
  float attention_scaling = 1.0F;
};
RopeTable rope_table(const RopeSpec& rope, int64_t seq_len);

}  // namespace sftrun::spec
