#include <algorithm>
#include <cmath>

#include "arch_checks.h"
#include "family.h"
#include "json_fields.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/arch_spec.h"

/// Reads GGUF metadata: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
namespace sftrun::spec {
namespace {

using nlohmann::json;

const Family& family_of(const JsonFields& general) {
  const std::string name = general.get_string("general.architecture", "");
  if (name.empty()) general.fail_missing("general.architecture");
  const bool has_experts = general.get_int(name + ".expert_count", 0, 0, kMaxSize) > 0;
  if (const Family* family = family_of_gguf(name, has_experts)) return *family;
  std::vector<std::string> known;
  for (const Family* family : families()) {
    const bool is_new = std::find(known.begin(), known.end(), family->gguf) == known.end();
    if (!family->gguf.empty() && is_new) known.emplace_back(family->gguf);
    if (!family->gguf_of_axes.name.empty()) known.emplace_back(family->gguf_of_axes.name);
  }
  throw DataError(fmt::format("the architecture \"{}\" is not supported", name), general.where(),
                  "supported GGUF architectures: " + join(known, ", "));
}

/// A number for all layers, or a list with one per layer: returns the first layer's and sets `own`
/// in layers that differ.
int64_t read_by_layer(const JsonFields& meta, const char* key, int64_t otherwise, ArchSpec& arch,
                      int64_t LayerSpec::*own) {
  const json* values = meta.find(key);
  if (values == nullptr || !values->is_array()) {
    return otherwise > 0 ? meta.get_int(key, otherwise, 1, kMaxSize)
                         : meta.require_int(key, 1, kMaxSize);
  }
  const std::vector<int64_t> sizes = meta.get_ids(key);
  if (sizes.size() != gguf_blocks(meta))
    meta.fail(key,
              fmt::format("a number, or a list of {} numbers (one per layer)", gguf_blocks(meta)));
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    if (sizes[i] < 1 || sizes[i] > kMaxSize) meta.fail(key, "a list of positive sizes");
    if (sizes[i] != sizes[0]) arch.layers[i].*own = sizes[i];
  }
  return sizes[0];
}

void read_gguf_sizes(const JsonFields& meta, ArchSpec& arch) {
  const auto blocks = static_cast<int64_t>(gguf_blocks(meta));
  // Layers that predict further tokens (multi-token prediction) come last and are not used.
  arch.num_layers = blocks - meta.get_int("nextn_predict_layers", 0, 0, blocks - 1);
  arch.layers.resize(static_cast<size_t>(arch.num_layers));
  arch.vocab_size = meta.require_int("vocab_size", 1, kMaxSize);
  arch.hidden_size = meta.require_int("embedding_length", 1, kMaxSize);
  arch.intermediate_size =
      read_by_layer(meta, "feed_forward_length", 0, arch, &LayerSpec::intermediate_size);
  arch.num_heads = meta.require_int("attention.head_count", 1, kMaxSize);
  arch.num_kv_heads = read_by_layer(meta, "attention.head_count_kv", arch.num_heads, arch,
                                    &LayerSpec::num_kv_heads);
  arch.head_dim =
      meta.get_int("attention.key_length", arch.hidden_size / arch.num_heads, 1, kMaxSize);
  arch.max_position_embeddings = meta.require_int("context_length", 1, kMaxSize);
}

void refuse_unsupported(const JsonFields& meta, const Family& family, const ArchSpec& arch) {
  if (!family.is_mixture && !family.may_be_mixture &&
      meta.get_int("expert_count", 0, 0, kMaxSize) > 0) {
    throw DataError(fmt::format("mixtures of experts of the architecture \"{}\" are not supported",
                                family.gguf),
                    meta.where());
  }
  const auto require_head_size = [&](const char* key) {
    const int64_t size = meta.get_int(key, arch.head_dim, 1, kMaxSize);
    if (size == arch.head_dim) return;
    throw DataError(fmt::format("`{}` {} differs from the head size {}, which is not supported",
                                meta.full_name(key), size, arch.head_dim),
                    meta.where());
  };
  require_head_size("attention.value_length");
  if (!family.partial_rotary) require_head_size("rope.dimension_count");
}

RopeType scaling_type(const JsonFields& meta) {
  // Older files have rope.scale_linear instead of rope.scaling.*.
  const std::string otherwise = meta.has("rope.scale_linear") ? "linear" : "none";
  const std::string name = meta.get_string("rope.scaling.type", otherwise);
  if (name == "none") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "yarn") return RopeType::kYarn;
  throw DataError(fmt::format("RoPE scaling \"{}\" is not supported", name), meta.where(),
                  "supported in GGUF files: none, linear, yarn and rope_freqs.weight");
}

RopeSpec read_rope(const JsonFields& meta, const ArchSpec& arch) {
  RopeSpec rope{.rotary_dim = meta.get_int("rope.dimension_count", arch.head_dim, 1, arch.head_dim),
                .max_position_embeddings = arch.max_position_embeddings};
  rope.type = scaling_type(meta);
  rope.theta = meta.get_positive("rope.freq_base", 10000.0);
  if (rope.type == RopeType::kDefault) return rope;
  rope.factor =
      meta.get_positive("rope.scaling.factor", meta.get_positive("rope.scale_linear", 1.0));
  if (rope.type != RopeType::kYarn) return rope;
  rope.original_max_position_embeddings = meta.get_int("rope.scaling.original_context_length",
                                                       arch.max_position_embeddings, 1, kMaxSize);
  rope.beta_fast = meta.get_positive("rope.scaling.yarn_beta_fast", rope.beta_fast);
  rope.beta_slow = meta.get_positive("rope.scaling.yarn_beta_slow", rope.beta_slow);
  const double attention = meta.get_positive("rope.scaling.attn_factor", 1.0);
  // llama.cpp multiplies YaRN's default factor by this one; transformers' attention_factor is the
  // product.
  if (attention != 1.0) rope.attention_factor = attention * (0.1 * std::log(rope.factor) + 1.0);
  // The converter stores transformers' attention_factor in this key. llama.cpp does not read it for
  // these families.
  if (meta.has("rope.scaling.yarn_attn_factor"))
    rope.attention_factor = meta.require_positive("rope.scaling.yarn_attn_factor");
  return rope;
}

/// Text has the same position on every axis, so only an export of the same architecture reads them.
void read_axes(const JsonFields& meta, RopeSpec& rope, bool alternates) {
  constexpr size_t kAxes = 3;
  rope.sections = meta.get_ids("rope.dimension_sections");
  if (rope.sections.size() < kAxes)
    meta.fail("rope.dimension_sections", "a list of the frequencies of time, height and width");
  rope.sections.resize(kAxes);
  rope.sections_alternate = alternates;
}

void read_special_tokens(const JsonFields& general, ArchSpec& arch) {
  if (general.has("tokenizer.ggml.bos_token_id")) {
    arch.bos_token_id = general.require_int("tokenizer.ggml.bos_token_id", 0, kMaxSize);
  }
  // llama.cpp stops generating at any of these.
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    for (const int64_t id : general.get_ids(key)) {
      if (std::find(arch.eos_token_ids.begin(), arch.eos_token_ids.end(), id) ==
          arch.eos_token_ids.end()) {
        arch.eos_token_ids.push_back(id);
      }
    }
  }
}

/// Whether llama3 scaling with these parameters gives `divisors`.
bool explains(const RopeSpec& candidate, const std::vector<float>& divisors) {
  RopeSpec plain = candidate;
  plain.type = RopeType::kDefault;
  const RopeTable base = rope_table(plain, 1), table = rope_table(candidate, 1);
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double divisor = static_cast<double>(base.inv_freq[i]) / table.inv_freq[i];
    if (std::abs(divisor - divisors[i]) > 1e-4 * divisors[i]) return false;
  }
  return true;
}

/// The first divisors are 1, all others so large that their frequencies do not rotate.
bool turns_in_part(const std::vector<float>& divisors) {
  const auto end_of_ones =
      std::find_if(divisors.begin(), divisors.end(), [](float d) { return d != 1.0F; });
  return std::all_of(end_of_ones, divisors.end(), [](float d) { return d > 1e20F; });
}

/// The divisor of the longest wavelengths is the scaling factor itself. It is rounded if it is
/// within rounding error of a whole number.
double largest_factor(const std::vector<float>& divisors) {
  const double largest = *std::max_element(divisors.begin(), divisors.end());
  return std::abs(largest - std::round(largest)) < 1e-5 * largest ? std::round(largest) : largest;
}

}  // namespace

ArchSpec ArchSpec::from_gguf(const json& metadata, const std::string& where) {
  const JsonFields general(metadata, where);
  const Family& family = family_of(general);
  const JsonFields meta(metadata, where, general.get_string("general.architecture", "") + ".");
  ArchSpec arch;
  arch.family = family.model_type;
  if (family.traits) family.traits(arch);
  read_gguf_sizes(meta, arch);
  refuse_unsupported(meta, family, arch);
  arch.rms_norm_eps = meta.require_positive("attention.layer_norm_rms_epsilon");
  arch.ropes = {read_rope(meta, arch)};
  if (general.get_string("general.architecture", "") == family.gguf_of_axes.name)
    read_axes(meta, arch.ropes[0], family.gguf_of_axes.alternates);
  if (family.read_gguf) family.read_gguf(meta, arch);
  read_special_tokens(general, arch);
  check_arch(arch, where);
  return arch;
}

std::string gguf_feed_forward_norm(const ArchSpec& arch) {
  return std::string(family_named(arch.family, {}).gguf_feed_forward_norm);
}

bool gguf_interleaves_heads(const ArchSpec& arch) {
  return family_named(arch.family, {}).gguf_interleaves;
}

void set_longrope_factors(RopeSpec& rope, const std::vector<float>& short_factor,
                          const std::vector<float>& long_factor, const std::string& where) {
  const auto sound = [&](const std::vector<float>& factors) {
    return static_cast<int64_t>(factors.size()) == rope.rotary_dim / 2 &&
           std::all_of(factors.begin(), factors.end(),
                       [](float f) { return std::isfinite(f) && f > 0; });
  };
  if (!sound(short_factor) || !sound(long_factor)) {
    throw DataError(fmt::format("rope_factors_short.weight and rope_factors_long.weight must have "
                                "{} positive numbers each",
                                rope.rotary_dim / 2),
                    where);
  }
  if (rope.original_max_position_embeddings == 0) {
    throw DataError("the file has LongRoPE factors, but no rope.scaling.original_context_length",
                    where);
  }
  rope.type = RopeType::kLongRope;
  rope.short_factor = short_factor;
  rope.long_factor = long_factor;
  rope.factor = static_cast<double>(rope.max_position_embeddings) /
                static_cast<double>(rope.original_max_position_embeddings);
}

void set_rope_divisors(RopeSpec& rope, const std::vector<float>& divisors,
                       const std::string& where) {
  const int64_t count = rope.rotary_dim / 2;
  const bool sound = static_cast<int64_t>(divisors.size()) == count &&
                     std::all_of(divisors.begin(), divisors.end(),
                                 [](float d) { return std::isfinite(d) && d > 0; });
  if (!sound) {
    throw DataError(
        fmt::format("rope_freqs.weight must have head_dim / 2 = {} positive numbers", count),
        where);
  }
  if (std::all_of(divisors.begin(), divisors.end(), [](float d) { return d == 1.0F; })) return;
  if (rope.type == RopeType::kProportional && turns_in_part(divisors)) {
    const auto turning = std::count(divisors.begin(), divisors.end(), 1.0F);
    rope.partial = static_cast<double>(turning) / static_cast<double>(count);
    return;
  }
  rope.divisors = divisors;
  if (rope.type != RopeType::kDefault) return;
  RopeSpec candidate = rope;
  candidate.type = RopeType::kLlama3;
  candidate.divisors.clear();
  candidate.factor = largest_factor(divisors);
  // Llama 3 models use low 1, high 4 and 8192 original positions; tiny test models use fewer.
  candidate.original_max_position_embeddings = 8192;
  if (explains(candidate, divisors)) {
    rope = candidate;
    return;
  }
  for (int64_t original = 16; original <= (1 << 20); original *= 2) {
    candidate.original_max_position_embeddings = original;
    if (!explains(candidate, divisors)) continue;
    rope = candidate;
    return;
  }
}

}  // namespace sftrun::spec
