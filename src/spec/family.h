#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json_fields.h"
#include "sftrun/spec/arch_spec.h"

/// The families: each says in its own file (families/) how it differs from Llama.
namespace sftrun::spec {

/// RoPE bases of layers that see everything and of those with a window.
struct RopeThetas {
  double full = 10000.0, sliding = 10000.0;
};

/// Metadata below an architecture's prefix ("llama.").
class GgufMetadataWriter {
 public:
  GgufMetadataWriter(nlohmann::ordered_json& metadata, std::string prefix)
      : metadata_(metadata), prefix_(std::move(prefix)) {}
  void set(const char* key, const nlohmann::json& value) { metadata_[prefix_ + key] = value; }

 private:
  nlohmann::ordered_json& metadata_;
  std::string prefix_;
};

struct Family {
  std::string_view model_type;   ///< "gemma2"
  std::string_view model_class;  ///< "Gemma2ForCausalLM"
  /// The model_type of which this is the text part, described under `text_config`; or empty.
  std::string_view text_part_of = {};
  /// What transformers' configuration class takes for keys that a config.json leaves out, where
  /// that is not what `ArchSpec` has.
  const char* defaults = "{}";
  bool is_mixture = false;      ///< has layers of experts
  bool may_be_mixture = false;  ///< some models of the family have experts
  bool reads_mxfp4 = false;     ///< its experts may be stored as MXFP4 blocks
  bool partial_rotary = false;  ///< understands `partial_rotary_factor`
  /// Set where windowed layers have a RoPE of their own: what both take by default.
  std::optional<RopeThetas> theta_by_layer_type;
  /// What every model of the family has, whatever its file says.
  void (*traits)(ArchSpec& arch) = nullptr;
  /// From a config.json whose common keys but RoPE are read, with the defaults filled in.
  void (*read)(const JsonFields& config, ArchSpec& arch) = nullptr;
  /// The other way round: adds to a config.json that has the common keys.
  void (*write)(const ArchSpec& arch, nlohmann::json& config) = nullptr;

  std::string_view gguf = {};  ///< general.architecture; empty: llama.cpp has another name for it
  bool gguf_interleaves = false;  ///< stores the halves of each head of q and k interleaved
  /// What it calls the norm before the feed-forward half.
  std::string_view gguf_feed_forward_norm = "ffn_norm";
  /// From metadata whose common keys are read. @param meta below the architecture's prefix
  void (*read_gguf)(const JsonFields& meta, ArchSpec& arch) = nullptr;
  /// The other way round: adds to metadata that have the common keys.
  void (*write_gguf)(const ArchSpec& arch, GgufMetadataWriter& meta) = nullptr;
  /// Where `gguf` is empty: the family by whose name llama.cpp stores this one.
  const Family* gguf_relative = nullptr;
};

extern const Family kLlama, kSmolLm3, kMistral, kQwen2, kQwen3, kGemma2, kGemma3, kPhi3, kOlmo2,
    kOlmo3, kGranite, kMixtral, kQwen3Moe, kGptOss, kQwen3_5, kQwen3_5Moe, kGemma4;

const std::vector<const Family*>& families();
/// Null: none is stored under this general.architecture. llama.cpp calls some mixtures as their
/// relatives without experts (Mixtral a llama).
const Family* family_of_gguf(const std::string& architecture, bool has_experts);
/// Null: no family is the text part of this model_type.
const Family* family_of_text_part(const std::string& model_type);
/// @throws DataError naming the families there are
const Family& family_named(const std::string& model_type, const std::string& where);

// ---- What several families share.

/// How many experts there are, how many serve a token, and whether their load is to be balanced.
void read_mixture(const JsonFields& config, ArchSpec& arch);
void write_mixture(const ArchSpec& arch, nlohmann::json& config);
/// The same from GGUF, where every layer is a mixture.
void read_expert_counts(const JsonFields& meta, ArchSpec& arch);

/// Fills `arch.layers` with one window for all layers; 0: none.
void set_windows(ArchSpec& arch, int64_t window);
/// The same from `sliding_window`, where null is none; and back.
void read_window(const JsonFields& config, ArchSpec& arch);
void write_window(const ArchSpec& arch, nlohmann::json& config);
/// Reads `layer_types` ("full_attention", "sliding_attention"), or takes `slides(layer)` where the
/// key is missing: sliding layers get the window.
void read_layer_types(const JsonFields& config, ArchSpec& arch, int64_t window,
                      const std::function<bool(int64_t layer)>& slides);
void write_layer_types(const ArchSpec& arch, nlohmann::json& config);
/// The same from GGUF, as llama.cpp reads it: `attention.sliding_window_pattern` has a flag for
/// each layer, or one number for "every so many layers one sees everything" (0: none does), which
/// is `period` where the key is missing. A window of 0: no layer has one.
void read_windows_gguf(const JsonFields& meta, ArchSpec& arch, int64_t window, int64_t period);
/// And back: the pattern only where it is not the one of `period`, which files leave out.
void write_windows_gguf(const ArchSpec& arch, GgufMetadataWriter& meta, int64_t period);
/// Layers of a GGUF file, those that predict further tokens among them.
size_t gguf_blocks(const JsonFields& meta);
/// A flag for each layer of the model. @throws DataError unless `key` is that
std::vector<bool> read_flags_gguf(const JsonFields& meta, const std::string& key,
                                  const ArchSpec& arch);
/// The window of the first layer that has one; 0: none has.
int64_t window_of(const ArchSpec& arch);

/// `layer_types`, null where the key is missing. @throws DataError unless it has one for each layer
const nlohmann::json* find_layer_types(const JsonFields& config, const ArchSpec& arch);

void make_every_layer_sparse(ArchSpec& arch);

/// What Gemma multiplies embeddings by.
double gemma_embedding_scale(const ArchSpec& arch);

/// `attention_bias` for q, k, v and o alike.
void read_attention_bias(const JsonFields& config, ArchSpec& arch);

}  // namespace sftrun::spec
