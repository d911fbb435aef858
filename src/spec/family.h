#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json_fields.h"
#include "sftrun/spec/arch_spec.h"

/// The model families. Each describes in its own file (families/) how it differs from Llama.
namespace sftrun::spec {

/// RoPE bases of layers with full attention and of layers with a sliding window.
struct RopeThetas {
  double full = 10000.0, sliding = 10000.0;
};

/// Writes metadata below an architecture's prefix ("llama.").
class GgufMetadataWriter {
 public:
  GgufMetadataWriter(nlohmann::ordered_json& metadata, std::string prefix)
      : metadata_(metadata), prefix_(std::move(prefix)) {}
  void set(const char* key, const nlohmann::json& value) { metadata_[prefix_ + key] = value; }

 private:
  nlohmann::ordered_json& metadata_;
  std::string prefix_;
};

/// The architecture under which llama.cpp stores a family's text model where its tokens have positions of three axes
/// (M-RoPE), as in a model that also takes images.
struct GgufOfAxes {
  std::string_view name;       ///< general.architecture; empty: there is none
  bool alternates = false;     ///< `RopeSpec::sections_alternate` of such a model
  bool has_deepstack = false;  ///< the number of DeepStack's layers is written
};

struct Family {
  std::string_view model_type;   ///< "gemma2"
  std::string_view model_class;  ///< "Gemma2ForCausalLM"
  /// "Gemma2ForSequenceClassification"; empty: `model_class` with that ending. "-": transformers has none.
  std::string_view score_class = {};
  /// Defaults of transformers' configuration class, where they differ from those of `ArchSpec`.
  const char* defaults = "{}";
  bool is_mixture = false;                         ///< has layers of experts
  bool may_be_mixture = false;                     ///< some models of the family have experts
  bool reads_mxfp4 = false;                        ///< its experts may be stored as MXFP4 blocks
  bool partial_rotary = false;                     ///< reads `partial_rotary_factor`
  std::string_view activation_key = "hidden_act";  ///< its key in config.json
  /// Set if windowed layers have their own RoPE: the default bases of both.
  std::optional<RopeThetas> theta_by_layer_type;
  /// Sets the properties that every model of the family has, independent of its file.
  void (*traits)(ArchSpec& arch) = nullptr;
  /// Reads the family's own keys of a config.json, with defaults filled in. Called after the common
  /// keys were read and before RoPE is read.
  void (*read)(const JsonFields& config, ArchSpec& arch) = nullptr;
  /// The inverse: adds to a config.json that has the common keys.
  void (*write)(const ArchSpec& arch, nlohmann::json& config) = nullptr;

  std::string_view gguf = {};  ///< general.architecture; empty: see `gguf_relative`
  GgufOfAxes gguf_of_axes = {};
  bool gguf_interleaves = false;  ///< stores rows of q and k interleaved per head
  /// llama.cpp's name of the norm before the MLP.
  std::string_view gguf_feed_forward_norm = "ffn_norm";
  /// Reads metadata whose common keys have been read. @param meta below the architecture's prefix
  void (*read_gguf)(const JsonFields& meta, ArchSpec& arch) = nullptr;
  /// The inverse: adds to metadata that have the common keys.
  void (*write_gguf)(const ArchSpec& arch, GgufMetadataWriter& meta) = nullptr;
  /// llama.cpp uses full attention in layers that have a window.
  bool gguf_ignores_windows = false;
  bool gguf_reads_head = true;     ///< false: llama.cpp always uses the embedding as the head
  bool gguf_keeps_merges = false;  ///< its SentencePiece vocabulary is stored with merges
  /// Whether llama-quantize treats a model as its "70B" models; null: never.
  bool (*gguf_is_70b)(const ArchSpec& arch) = nullptr;
  /// If `gguf` is empty: the family under whose name llama.cpp stores this one.
  const Family* gguf_relative = nullptr;
};

extern const Family kLlama, kSmolLm3, kMistral, kQwen2, kQwen3, kGemma2, kGemma3, kPhi3, kOlmo2,
    kOlmo3, kGranite, kMixtral, kQwen3Moe, kGptOss, kQwen3_5, kQwen3_5Moe, kGemma4;

const std::vector<const Family*>& families();
/// nullptr: no family uses this general.architecture, also not for positions of three axes. llama.cpp stores some mixtures of experts
/// under the name of a family without experts (Mixtral as llama).
const Family* family_of_gguf(const std::string& architecture, bool has_experts);
/// @throws DataError listing the known families, and the known larger models of which they are a part
const Family& family_named(const std::string& model_type, const std::string& where);

// ---- Helpers shared by several families

/// Reads the number of experts, the experts per token, and the load-balancing loss.
void read_mixture(const JsonFields& config, ArchSpec& arch);
void write_mixture(const ArchSpec& arch, nlohmann::json& config);
/// The same from GGUF, for families in which every layer is a mixture.
void read_expert_counts(const JsonFields& meta, ArchSpec& arch);

/// Fills `arch.layers`, with the same window in every layer; 0: no window.
void set_windows(ArchSpec& arch, int64_t window);
/// The same from `sliding_window`, where null means no window; and its inverse.
void read_window(const JsonFields& config, ArchSpec& arch);
void write_window(const ArchSpec& arch, nlohmann::json& config);
/// Reads `layer_types` ("full_attention", "sliding_attention"); if it is missing, `slides(layer)`
/// decides. Sliding layers get the window.
void read_layer_types(const JsonFields& config, ArchSpec& arch, int64_t window,
                      const std::function<bool(int64_t layer)>& slides);
void write_layer_types(const ArchSpec& arch, nlohmann::json& config);
/// The same from GGUF, as llama.cpp reads it. `attention.sliding_window_pattern` is a list with one
/// flag per layer, or a number n: every n-th layer has full attention (0: none has). `period` is n
/// if the key is missing. With a window of 0 no layer has one.
void read_windows_gguf(const JsonFields& meta, ArchSpec& arch, int64_t window, int64_t period);
/// The inverse; writes the pattern only if it differs from that of `period`.
void write_windows_gguf(const ArchSpec& arch, GgufMetadataWriter& meta, int64_t period);
/// Number of layers in a GGUF file, including those that predict further tokens.
size_t gguf_blocks(const JsonFields& meta);
/// One flag per layer of the model. @throws DataError if `key` is not such a list
std::vector<bool> read_flags_gguf(const JsonFields& meta, const std::string& key,
                                  const ArchSpec& arch);
/// The window of the first layer that has one; 0: none.
int64_t window_of(const ArchSpec& arch);

/// `layer_types`; nullptr if the key is missing. @throws DataError unless it has one entry per
/// layer
const nlohmann::json* find_layer_types(const JsonFields& config, const ArchSpec& arch);

void make_every_layer_sparse(ArchSpec& arch);

/// Gemma's factor for the embedding.
double gemma_embedding_scale(const ArchSpec& arch);

/// Reads `attention_bias`, which is for q, k, v and o.
void read_attention_bias(const JsonFields& config, ArchSpec& arch);

}  // namespace sftrun::spec
