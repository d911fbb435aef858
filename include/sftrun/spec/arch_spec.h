#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/core/feature_projector.h"
#include "sftrun/core/file_layout.h"
#include "sftrun/core/tensor_role.h"
#include "sftrun/spec/vision_spec.h"

/// A model family is described by data: everything that the one `Decoder` needs to run a
/// checkpoint.
namespace sftrun::spec {

/// kProportional (Gemma 4): frequencies of the whole head; only the first ones rotate.
enum class RopeType { kDefault, kLinear, kDynamic, kYarn, kLlama3, kLongRope, kProportional };

/// Rotary position embedding (RoFormer, arXiv:2104.09864) and its scaling variants, named as in
/// transformers' modeling_rope_utils.py.
struct RopeSpec {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  int64_t rotary_dim = 0;  ///< leading channels of a head that are rotated
  int64_t max_position_embeddings = 0;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;          ///< 0: max_position_embeddings
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3
  double beta_fast = 32.0, beta_slow = 1.0;              ///< yarn
  std::optional<double> attention_factor;                ///< yarn, longrope
  std::optional<double> mscale, mscale_all_dim;          ///< yarn
  bool truncate = true;                                  ///< yarn
  double partial = 1.0;  ///< proportional: share of the frequencies that rotate
  /// longrope: each frequency is divided by its entry, [rotary_dim / 2]. long_factor is for
  /// sequences longer than original_max_position_embeddings.
  std::vector<float> short_factor, long_factor;
  /// GGUF's `rope_freqs.weight` if no named type describes it: each frequency is divided by its
  /// entry, after the scaling of `type`. Empty, or [rotary_dim / 2].
  std::vector<float> divisors;
  /// M-RoPE (arXiv:2409.12191, section 2.1): how many frequencies read each axis of positions
  /// (time, height, width). Empty: all read the same position.
  std::vector<int64_t> sections;
  /// The axes alternate from frequency to frequency (Qwen 3-VL, 3.5); else each section's
  /// frequencies are adjacent (Qwen 2-VL).
  bool sections_alternate = false;

  /// The axis whose position frequency i reads, i < rotary_dim / 2.
  int64_t axis_of(int64_t i) const;
  /// Whether the frequencies depend on the sequence length.
  bool by_length() const { return type == RopeType::kDynamic || type == RopeType::kLongRope; }
};

/// kClampedSwiglu: gpt-oss's, with `ArchSpec::swiglu_alpha` and `swiglu_limit`.
enum class Activation { kSilu, kGeluTanh, kClampedSwiglu };

/// Position of the norms in a layer: before attention and MLP (Llama), after them (OLMo 2), or both
/// (Gemma).
enum class NormPlacement { kBefore, kAfter, kBoth };

/// RMS norms of queries and keys before RoPE: over each head (Qwen 3), or over all heads (OLMo 2).
enum class QkNorm { kNone, kPerHead, kWhole };

/// The token mixer of a layer.
enum class Mixer { kAttention, kDeltaNet };

/// The blocks of layers, in the order in which they compute. Each name X is a namespace with a row in
/// spec/blocks/X.cpp and in plan/blocks/X.cpp, and of a mixer with `make` in layers/X/.
#define SFTRUN_MIXERS(X) X(attention) X(delta_net)
#define SFTRUN_BLOCKS(X) SFTRUN_MIXERS(X) X(experts) X(mlp) X(per_layer)

/// The properties that may differ between layers.
struct LayerSpec {
  Mixer mixer = Mixer::kAttention;
  /// Sliding window in keys, the query's own included; 0: full causal attention
  int64_t window = 0;
  /// Rows of one image see all rows of the same image, later ones too; the window limits keys before
  /// the query only.
  bool both_ways = false;
  int rope = 0;         ///< index in `ArchSpec::ropes`; -1: no position embedding
  bool sparse = false;  ///< its MLP is a mixture of experts
  /// Sizes that differ from the model's; 0: the model's.
  int64_t head_dim = 0, num_kv_heads = 0, intermediate_size = 0;
  bool value_is_key = false;  ///< values are the output of k_proj, before its norm
  int64_t keys_of = -1;       ///< the layer whose keys and values it reuses; -1: its own
};

/// Gated delta net (arXiv:2412.06464): consecutive value heads share a key head.
struct DeltaNetSpec {
  int64_t num_key_heads = 0, num_value_heads = 0, key_dim = 0, value_dim = 0;
  int64_t conv_kernel = 0;  ///< causal convolution's kernel size in tokens
  int64_t keys() const { return num_key_heads * key_dim; }
  int64_t values() const { return num_value_heads * value_dim; }
  int64_t channels() const { return 2 * keys() + values(); }
};

/// How checkpoint files store the experts of a layer.
enum class ExpertFiles {
  kEach,     ///< mlp.experts.N.gate_proj, up_proj, down_proj (Qwen 3 MoE)
  kMixtral,  ///< block_sparse_moe.experts.N.w1, w3, w2
  /// mlp.experts.gate_up_proj [experts, in, 2 * inner], columns alternating between gate and up,
  /// and down_proj [experts, inner, out]; or both as MXFP4 blocks
  kGptOss,
  /// mlp.experts.gate_up_proj [experts, in, 2 * inner] and down_proj [experts, inner, out] (Qwen3-VL)
  kTransposed,
  kWhole,  ///< experts.gate_up_proj [experts, 2 * inner, in] and down_proj, as in memory (Gemma 4)
};

/// Mixture of experts: a router selects a few expert MLPs for each token (arXiv:1701.06538,
/// arXiv:2401.04088).
struct MixtureSpec {
  int64_t num_experts = 0;  ///< 0: the model has no such layers
  int64_t top_k = 0;        ///< experts per token
  int64_t intermediate_size = 0;
  bool normalise = true;  ///< normalise the weights of the chosen experts to sum 1
  bool bias = false;      ///< the router and the experts' matrices have biases
  /// Intermediate size of a shared expert, which is applied to every token and scaled by its own
  /// gate; 0: none.
  int64_t shared_size = 0;
  /// A dense MLP runs beside the experts, each with its own norms; the router reads the normed and
  /// scaled hidden states, and each expert's weight has a scale (Gemma 4).
  bool beside_dense = false;
  /// Whether transformers' class has a load-balancing loss for its routers.
  bool has_aux_loss = true;
  /// Coefficient of that loss if config.json enables it (`output_router_logits`).
  std::optional<double> aux_loss_coef;
  ExpertFiles files = ExpertFiles::kEach;
};

/// A head of scores in place of the language-model head, as transformers' ...ForSequenceClassification has it: a matrix
/// `score.weight` [num_labels, hidden] without bias, applied to the last token of a text.
struct ScoreSpec {
  int64_t num_labels = 0;
  std::vector<std::string> names;  ///< id2label; empty: LABEL_0, LABEL_1, …
  std::string problem_type;        ///< as in config.json; empty: none
  const std::string& name_of(int64_t label) const { return names[static_cast<size_t>(label)]; }
};
inline constexpr const char* kScoreModule = "score";
inline constexpr const char* kScoreTensor = "score.weight";

struct ArchSpec {
  std::string family;  ///< HF model_type: "llama"
  /// Prefix of the names of embedding, layers and final norm: "model."; for the text part of a
  /// larger model transformers' prefix ("model.language_model.").
  std::string prefix = "model.";
  bool is_text_part() const { return prefix != ArchSpec{}.prefix; }
  std::string whole_model;           ///< HF model_type of that larger model: "gemma3"; else empty
  std::optional<VisionSpec> vision;  ///< its image side, if it has one
  /// Of features that other encoders computed. config.json does not have them: `add_projectors`, weights::read_projectors.
  std::vector<FeatureProjector> projectors;
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0, max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  std::vector<RopeSpec> ropes = {{}};
  std::vector<LayerSpec> layers;  ///< [num_layers]
  MixtureSpec mixture;
  DeltaNetSpec delta_net;
  bool tie_word_embeddings = false, qkv_bias = false, o_bias = false, mlp_bias = false;
  bool attention_sinks = false;  ///< each head has an extra attention logit that belongs to no key
  /// q_proj has twice as many rows: for each head its query, then the gate of its attention output.
  bool attention_gate = false;
  bool fused_projections = false;  ///< one matrix for q, k, v and one for gate, up (Phi-3)
  Activation activation = Activation::kSilu;
  double swiglu_alpha = 1.702, swiglu_limit = 7;  ///< kClampedSwiglu
  NormPlacement norms = NormPlacement::kBefore;
  bool norm_adds_one = false;  ///< norms multiply by 1 + weight (Gemma)
  QkNorm qk_norm = QkNorm::kNone;
  bool value_norm = false;  ///< values are normed per head, without a weight
  /// Size of the per-layer embedding that each layer adds for each token, from its own table and
  /// from the embedding (Gemma 4), and the table's vocabulary; 0: none.
  int64_t per_layer_size = 0, per_layer_vocab = 0;
  bool layer_scalar = false;     ///< each layer's output is multiplied by a learned scalar
  double attention_scale = 0;    ///< scale of attention scores; 0: 1 / sqrt(head_dim)
  double attention_softcap = 0;  ///< scores become cap * tanh(score / cap); 0: no cap
  double final_softcap = 0;      ///< logits likewise
  double embedding_scale = 1, residual_scale = 1, logit_scale = 1;
  /// transformers multiplies by `embedding_scale` after the embedding module, and so after NEFTune's
  /// noise (Granite)
  bool scales_embedding_noise = false;
  /// Set: the model gives scores, and no tokens; `tie_word_embeddings` is false then.
  std::optional<ScoreSpec> score;
  double initializer_range = 0.02;  ///< standard deviation of the values of new matrices
  std::optional<int64_t>
      pad_token_id;  ///< of config.json: scores are of the last token but this one
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;

  /// @param config the parsed config.json   @param where its path, for errors
  /// @throws DataError naming a key that is missing, out of range or unsupported; for unknown
  /// families also the list of known ones
  static ArchSpec from_hf_config(const nlohmann::json& config, const std::string& where);
  /// @param meta GGUF metadata as JSON (keys as in the file; arrays may be left out).
  /// `llama.vocab_size` is required here; the loader supplies it for files that lack it. Biases and
  /// tied embeddings follow from the list of tensors only; the loader sets them.
  static ArchSpec from_gguf(const nlohmann::json& meta, const std::string& where);
  /// A config.json from which transformers (4 and 5) loads the same model; the caller adds
  /// `torch_dtype`.
  /// @throws DataError if a rope has `divisors`, which config.json cannot express.
  nlohmann::json to_hf_config() const;
};

/// transformers' class of such a model with a head of scores ("LlamaForSequenceClassification"); empty: it has none.
std::string score_class(const ArchSpec& arch);
/// Sets `score`.
void set_score(ArchSpec& arch, ScoreSpec score);

/// Whether llama.cpp stores the rows of q and k interleaved: it rotates pairs of adjacent channels,
/// transformers rotates channels of the two halves of a head.
bool gguf_interleaves_heads(const ArchSpec& arch);
/// llama.cpp's name of the norm before the MLP: "ffn_norm".
std::string gguf_feed_forward_norm(const ArchSpec& arch);

/// Sets the RoPE scaling from GGUF's `rope_freqs.weight`, the divisor of each frequency (Llama 3.1
/// and later): as llama3 scaling if parameters are found that give these divisors, else as
/// `divisors`.
/// @throws DataError unless there are rotary_dim / 2 positive finite divisors.
void set_rope_divisors(RopeSpec& rope, const std::vector<float>& divisors,
                       const std::string& where);

/// Sets GGUF's `rope_factors_short.weight` and `rope_factors_long.weight` (LongRoPE).
/// @throws DataError unless there are rotary_dim / 2 positive finite numbers of each.
void set_longrope_factors(RopeSpec& rope, const std::vector<float>& short_factor,
                          const std::vector<float>& long_factor, const std::string& where);

using sftrun::TensorRole;

/// "model.layers.3.self_attn.q_proj"
std::string name_in_layer(const ArchSpec& arch, int64_t layer, const std::string& module);

/// A part of a tensor that files store under its own name; contiguous in the whole tensor.
struct TensorPart {
  std::string name;
  std::vector<int64_t> shape;
  int64_t offset = 0;  ///< first value in the whole tensor
};

struct TensorSpec {
  std::string name;  ///< HF name: "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kLinear;
  int64_t layer = -1;    ///< -1 outside the layers
  bool adds_one = true;  ///< norms: if the family's do (`ArchSpec::norm_adds_one`)
  /// Set if files store the tensor in parts or under another name; empty: stored as it is.
  std::vector<TensorPart> parts = {};
  FileLayout layout = {};  ///< of the whole tensor, if it has no parts
  ModelPart part = ModelPart::kLanguage;
  /// Tensors of the image side: where in it they compute; `layer` is the tower's, or the DeepStack merger's number.
  VisionUnit unit = VisionUnit::kNone;
  int64_t projector = -1;  ///< VisionUnit::kFeatures: the number in `ArchSpec::projectors`
  const std::vector<int64_t>& shape_in_files() const {
    return layout.shape.empty() ? shape : layout.shape;
  }
  int64_t numel() const;
};
/// Of the text model, and then those of its `projectors`.
std::vector<TensorSpec> tensor_specs(const ArchSpec& arch);

/// Whether files of such a model may contain this tensor although it is never used: the key
/// projections of layers that reuse another layer's keys.
bool is_unused(const ArchSpec& arch, const std::string& name);

/// Sizes of one layer's attention.
struct AttentionSizes {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t queries() const { return num_heads * head_dim; }
  int64_t keys() const { return num_kv_heads * head_dim; }
};
AttentionSizes attention_sizes(const ArchSpec& arch, int64_t layer);
int64_t intermediate_size(const ArchSpec& arch, int64_t layer);

/// Inverse frequencies [rotary_dim / 2] and the scale of cos and sin; equal to transformers'
/// ROPE_INIT_FUNCTIONS in fp32. `seq_len` (the largest position + 1) is used by "dynamic" and
/// "longrope" only.
struct RopeTable {
  std::vector<float> inv_freq;
  float attention_scaling = 1.0F;
};
RopeTable rope_table(const RopeSpec& rope, int64_t seq_len);

}  // namespace sftrun::spec
