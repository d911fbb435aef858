#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

/// A model family is data: what the one `Decoder` needs to know to run a checkpoint.
namespace sftrun::spec {

enum class RopeType { kDefault, kLinear, kDynamic, kYarn, kLlama3 };

/// Rotary position embedding (RoFormer, arXiv:2104.09864) and its scaling variants, named as in
/// transformers' modeling_rope_utils.py.
struct RopeSpec {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;          ///< 0: the model's max_position_embeddings
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3
  double beta_fast = 32.0, beta_slow = 1.0;              ///< yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;  ///< yarn
  bool truncate = true;                                            ///< yarn
  /// GGUF's `rope_freqs.weight` where no named type describes it: each frequency is divided by its
  /// entry, after the scaling of `type`. Empty, or [head_dim / 2].
  std::vector<float> divisors;
};

struct ArchSpec {
  std::string family;  ///< HF model_type: "llama"
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0, max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RopeSpec rope;
  bool tie_word_embeddings = false, attention_bias = false, mlp_bias = false;
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
  /// @throws DataError if `rope.divisors` is set: config.json has no word for it.
  nlohmann::json to_hf_config() const;
};

/// Takes over GGUF's `rope_freqs.weight` (what each frequency is divided by; Llama 3.1 and later):
/// as the llama3 scaling it was computed from where one is found that gives these divisors, else as
/// `rope.divisors`.
/// @throws DataError unless there are head_dim / 2 positive finite divisors.
void set_rope_divisors(ArchSpec& arch, const std::vector<float>& divisors,
                       const std::string& where);

/// What `TensorSpec` a checkpoint of this architecture holds, in the order of the layers.
enum class TensorRole { kEmbedding, kNorm, kLinear, kBias, kHead };
struct TensorSpec {
  std::string name;  ///< HF name: "model.layers.3.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kLinear;
  int64_t layer = -1;  ///< -1 outside the layers
  int64_t numel() const;
};
std::vector<TensorSpec> tensor_specs(const ArchSpec& arch);

/// The linear modules of a layer by HF name ("q_proj" … "down_proj"), with their sizes.
struct LinearSpec {
  std::string module;  ///< "self_attn.q_proj"
  int64_t in_features = 0, out_features = 0;
  bool bias = false;
};
std::vector<LinearSpec> layer_linears(const ArchSpec& arch);

/// Inverse frequencies [head_dim / 2] and the factor that cos and sin are multiplied by; equal to
/// transformers' ROPE_INIT_FUNCTIONS in fp32. `seq_len` matters to "dynamic" only: the longest
/// position + 1 seen.
struct RopeTable {
  std::vector<float> inv_freq;
  float attention_scaling = 1.0F;
};
RopeTable rope_table(const ArchSpec& arch, int64_t seq_len);

}  // namespace sftrun::spec
