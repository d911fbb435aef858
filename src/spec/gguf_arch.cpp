#include <algorithm>
#include <cmath>

#include "arch_checks.h"
#include "json_fields.h"
#include "sftrun/core/error.h"
#include "sftrun/spec/arch_spec.h"

/// GGUF metadata, as https://github.com/ggml-org/ggml/blob/master/docs/gguf.md describes it.
namespace sftrun::spec {
namespace {

using nlohmann::json;

void check_architecture(const JsonFields& general) {
  const std::string name = general.get_string("general.architecture", "");
  if (name.empty()) general.fail_missing("general.architecture");
  if (name != "llama") {
    throw DataError(fmt::format("the architecture \"{}\" is not supported", name), general.where(),
                    "supported GGUF architectures: llama");
  }
}

void read_sizes(const JsonFields& llama, ArchSpec& arch) {
  arch.vocab_size = llama.require_int("vocab_size", 1, kMostSize);
  arch.hidden_size = llama.require_int("embedding_length", 1, kMostSize);
  arch.intermediate_size = llama.require_int("feed_forward_length", 1, kMostSize);
  arch.num_layers = llama.require_int("block_count", 1, kMostLayers);
  arch.num_heads = llama.require_int("attention.head_count", 1, kMostSize);
  arch.num_kv_heads = llama.get_int("attention.head_count_kv", arch.num_heads, 1, kMostSize);
  arch.head_dim =
      llama.get_int("attention.key_length", arch.hidden_size / arch.num_heads, 1, kMostSize);
  arch.max_position_embeddings = llama.require_int("context_length", 1, kMostSize);
  arch.layers.resize(static_cast<size_t>(arch.num_layers));
}

void refuse_unsupported(const JsonFields& llama, const ArchSpec& arch) {
  if (llama.get_int("expert_count", 0, 0, kMostSize) > 0) {
    throw DataError("mixtures of experts are not supported", llama.where());
  }
  for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
    const int64_t size = llama.get_int(key, arch.head_dim, 1, kMostSize);
    if (size != arch.head_dim) {
      throw DataError(fmt::format("`{}` {} differs from the head size {}: not supported",
                                  llama.full_name(key), size, arch.head_dim),
                      llama.where());
    }
  }
}

RopeType scaling_type(const JsonFields& llama) {
  // rope.scale_linear is what files had before rope.scaling.*.
  const std::string otherwise = llama.has("rope.scale_linear") ? "linear" : "none";
  const std::string name = llama.get_string("rope.scaling.type", otherwise);
  if (name == "none") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "yarn") return RopeType::kYarn;
  throw DataError(fmt::format("RoPE scaling \"{}\" is not supported", name), llama.where(),
                  "supported in GGUF files are none, linear, yarn and rope_freqs.weight");
}

RopeSpec read_rope(const JsonFields& llama, const ArchSpec& arch) {
  RopeSpec rope{.rotary_dim = arch.head_dim,
                .max_position_embeddings = arch.max_position_embeddings};
  rope.type = scaling_type(llama);
  rope.theta = llama.get_positive("rope.freq_base", 10000.0);
  if (rope.type == RopeType::kDefault) return rope;
  rope.factor =
      llama.get_positive("rope.scaling.factor", llama.get_positive("rope.scale_linear", 1.0));
  if (rope.type != RopeType::kYarn) return rope;
  rope.original_max_position_embeddings = llama.get_int("rope.scaling.original_context_length",
                                                        arch.max_position_embeddings, 1, kMostSize);
  rope.beta_fast = llama.get_positive("rope.scaling.yarn_beta_fast", rope.beta_fast);
  rope.beta_slow = llama.get_positive("rope.scaling.yarn_beta_slow", rope.beta_slow);
  const double attention = llama.get_positive("rope.scaling.attn_factor", 1.0);
  // llama.cpp multiplies YaRN's own factor by this one; transformers' attention_factor is the
  // product.
  if (attention != 1.0) rope.attention_factor = attention * (0.1 * std::log(rope.factor) + 1.0);
  return rope;
}

void read_special_tokens(const JsonFields& general, ArchSpec& arch) {
  if (general.has("tokenizer.ggml.bos_token_id")) {
    arch.bos_token_id = general.require_int("tokenizer.ggml.bos_token_id", 0, kMostSize);
  }
  // llama.cpp ends generation at any of these.
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

/// Whether llama3 scaling with these parameters divides the frequencies by `divisors`.
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

/// The longest wavelengths are divided by the factor itself; whole numbers may have been rounded on
/// the way.
double largest_factor(const std::vector<float>& divisors) {
  const double largest = *std::max_element(divisors.begin(), divisors.end());
  return std::abs(largest - std::round(largest)) < 1e-5 * largest ? std::round(largest) : largest;
}

}  // namespace

ArchSpec ArchSpec::from_gguf(const json& meta, const std::string& where) {
  const JsonFields general(meta, where);
  check_architecture(general);
  const JsonFields llama(meta, where, "llama.");
  ArchSpec arch;
  arch.family = "llama";
  read_sizes(llama, arch);
  refuse_unsupported(llama, arch);
  arch.rms_norm_eps = llama.require_positive("attention.layer_norm_rms_epsilon");
  arch.ropes = {read_rope(llama, arch)};
  read_special_tokens(general, arch);
  check_arch(arch, where);
  return arch;
}

void set_rope_divisors(RopeSpec& rope, const std::vector<float>& divisors,
                       const std::string& where) {
  const int64_t count = rope.rotary_dim / 2;
  const bool sound = static_cast<int64_t>(divisors.size()) == count &&
                     std::all_of(divisors.begin(), divisors.end(),
                                 [](float d) { return std::isfinite(d) && d > 0; });
  if (!sound) {
    throw DataError(
        fmt::format("rope_freqs.weight must hold head_dim / 2 = {} positive numbers", count),
        where);
  }
  if (std::all_of(divisors.begin(), divisors.end(), [](float d) { return d == 1.0F; })) return;
  rope.divisors = divisors;
  if (rope.type != RopeType::kDefault) return;
  RopeSpec candidate = rope;
  candidate.type = RopeType::kLlama3;
  candidate.divisors.clear();
  candidate.factor = largest_factor(divisors);
  // Every Llama 3 uses low 1 and high 4, over 8192 original positions; tiny test models use fewer.
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
