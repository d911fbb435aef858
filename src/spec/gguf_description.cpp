#include "sftrun/spec/gguf_description.h"

#include <algorithm>
#include <cmath>

#include "family.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// The family under whose name GGUF files store this one.
const Family& stored_family(const ArchSpec& arch, const std::string& where) {
  const Family& family = family_named(arch.family, where);
  return family.gguf_relative == nullptr ? family : *family.gguf_relative;
}

/// general.architecture.
std::string_view architecture_of(const Family& family, const ArchSpec& arch) {
  const bool has_axes = !arch.ropes.at(0).sections.empty() && !family.gguf_of_axes.name.empty();
  return has_axes ? family.gguf_of_axes.name : family.gguf;
}

/// One number if all layers have the same, else one per layer.
json by_layer(const ArchSpec& arch, const std::function<int64_t(int64_t layer)>& value_of) {
  std::vector<int64_t> sizes;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) sizes.push_back(value_of(layer));
  const bool same =
      std::all_of(sizes.begin(), sizes.end(), [&](int64_t s) { return s == sizes[0]; });
  return same ? json(sizes[0]) : json(sizes);
}

void write_sizes(const ArchSpec& arch, GgufMetadataWriter& meta) {
  meta.set("vocab_size", arch.vocab_size);
  meta.set("context_length", arch.max_position_embeddings);
  meta.set("embedding_length", arch.hidden_size);
  meta.set("block_count", arch.num_layers);
  meta.set("feed_forward_length",
           by_layer(arch, [&](int64_t layer) { return intermediate_size(arch, layer); }));
  meta.set("attention.head_count", arch.num_heads);
  meta.set("attention.head_count_kv", by_layer(arch, [&](int64_t layer) {
             return attention_sizes(arch, layer).num_kv_heads;
           }));
  meta.set("attention.layer_norm_rms_epsilon", arch.rms_norm_eps);
  meta.set("attention.key_length", arch.head_dim);
  meta.set("attention.value_length", arch.head_dim);
  if (arch.mixture.num_experts == 0) return;
  meta.set("expert_count", arch.mixture.num_experts);
  meta.set("expert_used_count", arch.mixture.top_k);
}

/// YaRN's default scale of cos and sin, which llama.cpp multiplies by rope.scaling.attn_factor.
double yarn_factor(const RopeSpec& rope) {
  return 0.1 * std::log(rope.factor) + 1.0;
}

void write_yarn(const RopeSpec& rope, GgufMetadataWriter& meta) {
  meta.set("rope.scaling.type", "yarn");
  meta.set("rope.scaling.factor", rope.factor);
  const int64_t original = rope.original_max_position_embeddings;
  meta.set("rope.scaling.original_context_length",
           original > 0 ? original : rope.max_position_embeddings);
  meta.set("rope.scaling.yarn_beta_fast", rope.beta_fast);
  meta.set("rope.scaling.yarn_beta_slow", rope.beta_slow);
  const double attention = rope_table(rope, 1).attention_scaling / yarn_factor(rope);
  if (std::abs(attention - 1) > 1e-6) meta.set("rope.scaling.attn_factor", attention);
}

void write_rope(const RopeSpec& rope, GgufMetadataWriter& meta) {
  meta.set("rope.dimension_count", rope.rotary_dim);
  meta.set("rope.freq_base", rope.theta);
  if (rope.type == RopeType::kYarn) return write_yarn(rope, meta);
  if (rope.type == RopeType::kLinear) {
    meta.set("rope.scaling.type", "linear");
    meta.set("rope.scaling.factor", rope.factor);
  }
  if (rope.type == RopeType::kLongRope) {
    meta.set("rope.scaling.original_context_length", rope.original_max_position_embeddings);
    meta.set("rope.scaling.attn_factor",
             static_cast<double>(rope_table(rope, 1).attention_scaling));
  }
}

/// M-RoPE's frequencies of time, height and width; files have a fourth axis.
void write_axes(const ArchSpec& arch, const GgufOfAxes& stored, GgufMetadataWriter& meta) {
  std::vector<int64_t> sections = arch.ropes[0].sections;
  sections.push_back(0);
  meta.set("rope.dimension_sections", sections);
  if (!stored.has_deepstack) return;
  meta.set("n_deepstack_layers", arch.vision ? std::ssize(arch.vision->deepstack) : 0);
}

/// The divisor of each frequency relative to RoPE without scaling.
std::vector<float> divisors_of(const RopeSpec& rope) {
  RopeSpec plain = rope;
  plain.type = RopeType::kDefault;
  plain.divisors.clear();
  const RopeTable base = rope_table(plain, 1), table = rope_table(rope, 1);
  std::vector<float> divisors;
  for (size_t i = 0; i < base.inv_freq.size(); ++i) {
    divisors.push_back(table.inv_freq[i] > 0 ? base.inv_freq[i] / table.inv_freq[i] : kDoesNotTurn);
  }
  return divisors;
}

std::map<std::string, std::vector<float>> rope_tensors(const RopeSpec& rope) {
  if (rope.type == RopeType::kLongRope) {
    return {{kGgufLongFactors, rope.long_factor}, {kGgufShortFactors, rope.short_factor}};
  }
  if (rope.type == RopeType::kLlama3) return {{kGgufRopeDivisors, divisors_of(rope)}};
  if (rope.type == RopeType::kProportional) {
    // Relative to RoPE that rotates the whole head.
    std::vector<float> divisors(static_cast<size_t>(rope.rotary_dim / 2), kDoesNotTurn);
    const RopeTable table = rope_table(rope, 1);
    for (size_t i = 0; i < divisors.size() && i < table.inv_freq.size(); ++i) {
      if (table.inv_freq[i] > 0) divisors[i] = 1;
    }
    return {{kGgufRopeDivisors, divisors}};
  }
  if (!rope.divisors.empty()) return {{kGgufRopeDivisors, rope.divisors}};
  return {};
}

/// The ArchSpec that a reader gets from the description and the list of tensors.
ArchSpec read_back(const GgufDescription& description, const ArchSpec& arch,
                   const std::string& where) {
  ArchSpec read = ArchSpec::from_gguf(json(description.metadata), where);
  const auto find = [&](const char* name) {
    const auto found = description.tensors.find(name);
    return found == description.tensors.end() ? std::vector<float>() : found->second;
  };
  const std::vector<float> divisors = find(kGgufRopeDivisors),
                           short_factor = find(kGgufShortFactors);
  if (!divisors.empty()) set_rope_divisors(read.ropes[0], divisors, where);
  if (!short_factor.empty())
    set_longrope_factors(read.ropes[0], short_factor, find(kGgufLongFactors), where);
  read.family = arch.family;
  read.prefix = arch.prefix;
  read.tie_word_embeddings = arch.tie_word_embeddings;
  read.qkv_bias = arch.qkv_bias;
  read.o_bias = arch.o_bias;
  read.mlp_bias = arch.mlp_bias;
  for (size_t i = 0; i < read.layers.size(); ++i)
    read.layers[i].value_is_key = arch.layers[i].value_is_key;
  // These are used by training and the tokenizer only.
  read.mixture.aux_loss_coef = arch.mixture.aux_loss_coef;
  read.bos_token_id = arch.bos_token_id;
  read.eos_token_ids = arch.eos_token_ids;
  return read;
}

bool turns_alike(const RopeSpec& a, const RopeSpec& b, int64_t seq_len) {
  constexpr double kClose = 1e-4;
  const RopeTable first = rope_table(a, seq_len), second = rope_table(b, seq_len);
  if (first.inv_freq.size() != second.inv_freq.size()) return false;
  for (size_t i = 0; i < first.inv_freq.size(); ++i) {
    if (std::abs(first.inv_freq[i] - second.inv_freq[i]) > kClose * std::abs(first.inv_freq[i]))
      return false;
  }
  return std::abs(first.attention_scaling - second.attention_scaling) <
         kClose * first.attention_scaling;
}

/// Whether all layers of both models rotate alike, for a short and for the longest sequence.
bool have_same_rope(const ArchSpec& a, const ArchSpec& b) {
  const auto rope_of = [](const ArchSpec& arch, size_t layer) -> const RopeSpec* {
    const int rope = arch.layers[layer].rope;
    return rope < 0 ? nullptr : &arch.ropes.at(static_cast<size_t>(rope));
  };
  for (size_t layer = 0; layer < a.layers.size(); ++layer) {
    const RopeSpec *first = rope_of(a, layer), *second = rope_of(b, layer);
    if ((first == nullptr) != (second == nullptr)) return false;
    if (first == nullptr) continue;
    for (const int64_t length : {int64_t{1}, 2 * a.max_position_embeddings}) {
      if (!turns_alike(*first, *second, length)) return false;
    }
  }
  return true;
}

bool is_close(const json& a, const json& b) {
  if (!a.is_number_float() || !b.is_number()) return a == b;
  return std::abs(a.get<double>() - b.get<double>()) <= 1e-5 * std::abs(a.get<double>());
}

/// The config.json keys, except RoPE's, in which two models differ.
std::vector<std::string> differing_keys(ArchSpec a, ArchSpec b) {
  for (RopeSpec& rope : a.ropes) rope.divisors.clear();  // a config.json cannot express them
  b.ropes = a.ropes;
  for (size_t i = 0; i < a.layers.size(); ++i) b.layers[i].rope = a.layers[i].rope;
  const json before = a.to_hf_config(), after = b.to_hf_config();
  std::vector<std::string> keys;
  for (const auto& [key, value] : before.items()) {
    const auto found = after.find(key);
    if (found == after.end() || !is_close(value, *found)) keys.push_back(key);
  }
  return keys;
}

[[noreturn]] void fail_no_word(const std::string& what, const ArchSpec& arch,
                               const std::string& where) {
  throw DataError(
      fmt::format("GGUF files of the architecture \"{}\" cannot express this model's {}",
                  gguf_architecture(arch), what),
      where,
      "write it as safetensors (sftrun merge --format safetensors): llama.cpp would compute "
      "different outputs");
}

/// llama.cpp does not implement the windows of these families: it uses full attention, which is the
/// same for texts no longer than the window. Phi-3 files contain the key, but it is ignored.
std::string drop_windows(const ArchSpec& arch, ArchSpec& read) {
  const int64_t window = window_of(arch);
  const bool ignores = stored_family(arch, {}).gguf_ignores_windows;
  if (window == 0 || (window_of(read) > 0 && !ignores)) return {};
  for (size_t i = 0; i < read.layers.size(); ++i) read.layers[i].window = arch.layers[i].window;
  return fmt::format(
      "llama.cpp has no sliding window for \"{}\": it uses full attention for texts longer than {} "
      "tokens",
      gguf_architecture(arch), window);
}

void check_is_held(GgufDescription& description, const ArchSpec& arch, const std::string& where) {
  ArchSpec read = read_back(description, arch, where);
  description.lost = drop_windows(arch, read);
  if (!have_same_rope(arch, read))
    fail_no_word("position embedding (RoPE, or layers without it)", arch, where);
  const std::vector<std::string> keys = differing_keys(arch, read);
  if (!keys.empty()) fail_no_word(join(keys, ", "), arch, where);
}

}  // namespace

std::string gguf_architecture(const ArchSpec& arch) {
  return std::string(architecture_of(stored_family(arch, {}), arch));
}

bool gguf_reads_head(const ArchSpec& arch) {
  return stored_family(arch, {}).gguf_reads_head;
}

bool gguf_keeps_merges(const ArchSpec& arch) {
  return stored_family(arch, {}).gguf_keeps_merges;
}

bool gguf_is_70b(const ArchSpec& arch) {
  const Family& family = family_named(arch.family, {});
  return family.gguf_is_70b != nullptr && family.gguf_is_70b(arch);
}

GgufDescription describe_in_gguf(const ArchSpec& arch, const std::string& where) {
  const Family& family = stored_family(arch, where);
  if (family.gguf.empty()) {
    throw ConfigError(fmt::format("llama.cpp does not know the family {}", family.model_type),
                      where, "write safetensors: --format safetensors");
  }
  GgufDescription description;
  description.arch = arch;
  description.arch.family = family.model_type;
  description.arch.prefix = ArchSpec{}.prefix;
  const std::string_view architecture = architecture_of(family, arch);
  description.metadata["general.architecture"] = architecture;
  GgufMetadataWriter meta(description.metadata, std::string(architecture) + ".");
  write_sizes(arch, meta);
  write_rope(arch.ropes[0], meta);
  if (architecture == family.gguf_of_axes.name) write_axes(arch, family.gguf_of_axes, meta);
  description.tensors = rope_tensors(arch.ropes[0]);
  if (family.write_gguf) family.write_gguf(arch, meta);
  check_is_held(description, arch, where);
  return description;
}

}  // namespace sftrun::spec
