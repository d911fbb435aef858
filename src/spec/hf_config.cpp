#include <algorithm>
#include <array>

#include "arch_checks.h"
#include "json_fields.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;

const std::vector<std::string> kFamilies = {"llama"};

void check_family(const JsonFields& config) {
  const std::string family = config.get_string("model_type", "");
  if (family.empty()) config.fail_missing("model_type");
  if (std::find(kFamilies.begin(), kFamilies.end(), family) == kFamilies.end()) {
    throw DataError(fmt::format("the model family \"{}\" is not supported", family), config.where(),
                    "supported families: " + join(kFamilies, ", "));
  }
}

/// Keys that would change what the model computes in a way the decoder does not know.
void refuse_unsupported(const JsonFields& config) {
  const std::string activation = config.get_string("hidden_act", "silu");
  if (activation != "silu") {
    throw DataError(fmt::format("`hidden_act` \"{}\" is not supported for this family", activation),
                    config.where(), "supported is \"silu\"");
  }
  if (const json* quantization = config.find("quantization_config")) {
    const std::string method =
        quantization->is_object() ? quantization->value("quant_method", "unknown") : "unknown";
    throw DataError(
        fmt::format("the checkpoint is quantised by \"{}\", which is not supported", method),
        config.where(),
        "use the unquantised checkpoint; `tuning.quant` quantises it when it is loaded");
  }
}

/// rope_parameters of transformers 5, or rope_scaling + rope_theta of 4 and earlier. As
/// transformers reads it, rope_scaling wins where both are there.
RopeSpec read_rope(const JsonFields& config, int64_t max_position_embeddings) {
  RopeSpec rope;
  const std::string key = config.has("rope_scaling") && !config.find("rope_scaling")->empty()
                              ? "rope_scaling"
                              : "rope_parameters";
  const json empty = json::object();
  const json* object = config.find(key);
  const JsonFields fields(object ? *object : empty, config.where(), {}, key + ".");
  rope.type = parse_rope_type(fields.get_string("rope_type", fields.get_string("type", "default")),
                              config.where());
  rope.theta = fields.get_positive("rope_theta", config.get_positive("rope_theta", 10000.0));
  const double partial = fields.get_positive("partial_rotary_factor",
                                             config.get_positive("partial_rotary_factor", 1.0));
  if (partial != 1.0) {
    throw DataError(fmt::format("`partial_rotary_factor` {} is not supported", partial),
                    config.where());
  }
  if (rope.type == RopeType::kDefault) return rope;
  rope.factor = rope.type == RopeType::kYarn && !fields.has("factor")
                    ? 0.0
                    : fields.require_positive("factor");
  if (rope.type == RopeType::kYarn || rope.type == RopeType::kLlama3) {
    // A value at the top level wins, as in transformers (Phi-3 writes it there).
    rope.original_max_position_embeddings = config.get_int(
        "original_max_position_embeddings",
        fields.get_int("original_max_position_embeddings", max_position_embeddings, 1, kMostSize),
        1, kMostSize);
  }
  if (rope.factor == 0.0) {
    rope.factor = static_cast<double>(max_position_embeddings) /
                  static_cast<double>(rope.original_max_position_embeddings);
  }
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor = fields.require_positive("low_freq_factor");
    rope.high_freq_factor = fields.require_positive("high_freq_factor");
  }
  if (rope.type == RopeType::kYarn) {
    rope.beta_fast = fields.get_positive("beta_fast", 32.0);
    rope.beta_slow = fields.get_positive("beta_slow", 1.0);
    if (fields.has("attention_factor"))
      rope.attention_factor = fields.require_positive("attention_factor");
    if (fields.has("mscale")) rope.mscale = fields.require_positive("mscale");
    if (fields.has("mscale_all_dim"))
      rope.mscale_all_dim = fields.require_positive("mscale_all_dim");
    rope.truncate = fields.get_bool("truncate", true);
  }
  return rope;
}

void read_sizes(const JsonFields& config, ArchSpec& arch) {
  arch.vocab_size = config.require_int("vocab_size", 1, kMostSize);
  arch.hidden_size = config.require_int("hidden_size", 1, kMostSize);
  arch.intermediate_size = config.require_int("intermediate_size", 1, kMostSize);
  arch.num_layers = config.require_int("num_hidden_layers", 1, kMostLayers);
  arch.num_heads = config.require_int("num_attention_heads", 1, kMostSize);
  arch.num_kv_heads = config.get_int("num_key_value_heads", arch.num_heads, 1, kMostSize);
  if (!config.has("head_dim") && arch.hidden_size % arch.num_heads != 0) {
    throw DataError(fmt::format("hidden_size {} is not a multiple of num_attention_heads {} and "
                                "`head_dim` is missing",
                                arch.hidden_size, arch.num_heads),
                    config.where());
  }
  arch.head_dim = config.get_int("head_dim", arch.hidden_size / arch.num_heads, 1, kMostSize);
  arch.max_position_embeddings = config.get_int("max_position_embeddings", 2048, 1, kMostSize);
}

json rope_scaling_json(const RopeSpec& rope) {
  if (rope.type == RopeType::kDefault) return nullptr;
  json scaling = {{"rope_type", name_of(rope.type)}, {"factor", rope.factor}};
  if (rope.original_max_position_embeddings > 0) {
    scaling["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  if (rope.type == RopeType::kLlama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == RopeType::kYarn) {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    if (rope.attention_factor) scaling["attention_factor"] = *rope.attention_factor;
    if (rope.mscale) scaling["mscale"] = *rope.mscale;
    if (rope.mscale_all_dim) scaling["mscale_all_dim"] = *rope.mscale_all_dim;
    if (!rope.truncate) scaling["truncate"] = false;
  }
  return scaling;
}

json ids_json(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? json(ids[0]) : json(ids);
}

}  // namespace

ArchSpec ArchSpec::from_hf_config(const json& config_json, const std::string& where) {
  const JsonFields config(config_json, where);
  check_family(config);
  refuse_unsupported(config);
  ArchSpec arch;
  arch.family = config.get_string("model_type", "");
  read_sizes(config, arch);
  arch.rms_norm_eps = config.get_positive("rms_norm_eps", 1e-6);
  arch.rope = read_rope(config, arch.max_position_embeddings);
  arch.tie_word_embeddings = config.get_bool("tie_word_embeddings", false);
  arch.attention_bias = config.get_bool("attention_bias", false);
  arch.mlp_bias = config.get_bool("mlp_bias", false);
  if (config.has("bos_token_id"))
    arch.bos_token_id = config.require_int("bos_token_id", 0, kMostSize);
  arch.eos_token_ids = config.get_ids("eos_token_id");
  check_arch(arch, where);
  return arch;
}

json ArchSpec::to_hf_config() const {
  if (!rope.divisors.empty()) {
    throw DataError("the RoPE frequencies of this model cannot be expressed in a config.json", {},
                    "its rope_freqs.weight follows no scaling that transformers knows");
  }
  // rope_theta and rope_scaling are read by transformers 4 and 5 alike.
  return {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", family},
      {"vocab_size", vocab_size},
      {"hidden_size", hidden_size},
      {"intermediate_size", intermediate_size},
      {"num_hidden_layers", num_layers},
      {"num_attention_heads", num_heads},
      {"num_key_value_heads", num_kv_heads},
      {"head_dim", head_dim},
      {"hidden_act", "silu"},
      {"max_position_embeddings", max_position_embeddings},
      {"rms_norm_eps", rms_norm_eps},
      {"rope_theta", rope.theta},
      {"rope_scaling", rope_scaling_json(rope)},
      {"tie_word_embeddings", tie_word_embeddings},
      {"attention_bias", attention_bias},
      {"mlp_bias", mlp_bias},
      {"bos_token_id", bos_token_id ? json(*bos_token_id) : json(nullptr)},
      {"eos_token_id", ids_json(eos_token_ids)},
  };
}

}  // namespace sftrun::spec
