#include "hf_rope.h"

#include "arch_checks.h"
#include "sftrun/core/error.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;

constexpr const char* kFullAttention = "full_attention";
constexpr const char* kSlidingAttention = "sliding_attention";

const json& empty_object() {
  static const json empty = json::object();
  return empty;
}

/// Reads the keys of one RoPE; some of them may be at the top level of the configuration.
class RopeReader {
 public:
  RopeReader(const JsonFields& config, const JsonFields& fields, const Family& family,
             const ArchSpec& arch, int64_t head_dim)
      : config_(config), fields_(fields), family_(family), arch_(arch), head_dim_(head_dim) {}

  RopeSpec read(double theta) const {
    RopeSpec rope;
    rope.type = parse_rope_type(
        fields_.get_string("rope_type", fields_.get_string("type", "default")), config_.where());
    rope.theta = fields_.get_positive("rope_theta", theta);
    rope.max_position_embeddings = arch_.max_position_embeddings;
    rope.rotary_dim = rotary_dim();
    read_sections(rope);
    if (rope.type == RopeType::kDefault) return rope;
    if (rope.type == RopeType::kProportional) return with_part_that_turns(rope);
    read_factor(rope);
    if (rope.type == RopeType::kLlama3) {
      rope.low_freq_factor = fields_.require_positive("low_freq_factor");
      rope.high_freq_factor = fields_.require_positive("high_freq_factor");
    }
    if (rope.type == RopeType::kYarn) read_yarn(rope);
    if (rope.type == RopeType::kLongRope) {
      rope.short_factor = factors("short_factor", rope.rotary_dim / 2);
      rope.long_factor = factors("long_factor", rope.rotary_dim / 2);
    }
    const bool scales = rope.type == RopeType::kYarn || rope.type == RopeType::kLongRope;
    if (scales && fields_.has("attention_factor"))
      rope.attention_factor = fields_.require_positive("attention_factor");
    return rope;
  }

 private:
  /// Text has the same position on every axis, so sections that do not fit are no error here.
  void read_sections(RopeSpec& rope) const {
    const json* sections = fields_.find("mrope_section");
    if (sections == nullptr || !sections->is_array() || sections->size() != 3) return;
    std::vector<int64_t> values;
    int64_t sum = 0;
    for (const json& value : *sections) {
      if (!value.is_number_unsigned() || value.get<int64_t>() > rope.rotary_dim) return;
      values.push_back(value.get<int64_t>());
      sum += values.back();
    }
    if (sum != rope.rotary_dim / 2) return;
    rope.sections = values;
    rope.sections_alternate = fields_.get_bool("mrope_interleaved", false);
  }

  double partial_factor() const {
    return fields_.get_positive("partial_rotary_factor",
                                config_.get_positive("partial_rotary_factor", 1.0));
  }

  /// Partial rotation where the frequencies are computed for the whole head.
  RopeSpec with_part_that_turns(RopeSpec rope) const {
    rope.rotary_dim = head_dim_;
    rope.partial = partial_factor();
    rope.factor = fields_.get_positive("factor", 1.0);
    return rope;
  }

  int64_t rotary_dim() const {
    const double partial = partial_factor();
    if (partial == 1.0) return head_dim_;
    if (!family_.partial_rotary || partial > 1.0) {
      throw DataError(fmt::format("`partial_rotary_factor` {} is not supported", partial),
                      config_.where());
    }
    return static_cast<int64_t>(static_cast<double>(head_dim_) * partial);
  }

  void read_factor(RopeSpec& rope) const {
    const bool has_original = rope.type == RopeType::kYarn || rope.type == RopeType::kLlama3 ||
                              rope.type == RopeType::kLongRope;
    if (has_original) {
      // A value at the top level wins, as in transformers (Phi-3 writes it there).
      rope.original_max_position_embeddings =
          config_.get_int("original_max_position_embeddings",
                          fields_.get_int("original_max_position_embeddings",
                                          arch_.max_position_embeddings, 1, kMaxSize),
                          1, kMaxSize);
    }
    const bool may_lack = rope.type == RopeType::kYarn || rope.type == RopeType::kLongRope;
    rope.factor = may_lack && !fields_.has("factor")
                      ? static_cast<double>(arch_.max_position_embeddings) /
                            static_cast<double>(rope.original_max_position_embeddings)
                      : fields_.require_positive("factor");
  }

  void read_yarn(RopeSpec& rope) const {
    rope.beta_fast = fields_.get_positive("beta_fast", 32.0);
    rope.beta_slow = fields_.get_positive("beta_slow", 1.0);
    if (fields_.has("mscale")) rope.mscale = fields_.require_positive("mscale");
    if (fields_.has("mscale_all_dim"))
      rope.mscale_all_dim = fields_.require_positive("mscale_all_dim");
    rope.truncate = fields_.get_bool("truncate", true);
  }

  std::vector<float> factors(const char* key, int64_t count) const {
    const std::string expected =
        fmt::format("a list of {} numbers greater than 0 (half the rotated channels)", count);
    const json* list = fields_.find(key);
    if (!list || !list->is_array() || static_cast<int64_t>(list->size()) != count)
      fields_.fail(key, expected);
    std::vector<float> values;
    for (const json& item : *list) {
      if (!item.is_number() || !(item.get<double>() > 0)) fields_.fail(key, expected);
      values.push_back(item.get<float>());
    }
    return values;
  }

  const JsonFields& config_;
  const JsonFields& fields_;
  const Family& family_;
  const ArchSpec& arch_;
  int64_t head_dim_;
};

/// The key with RoPE's parameters: rope_parameters in transformers 5, rope_scaling (beside
/// rope_theta) in 4 and earlier. If both are present rope_scaling wins, as in transformers.
std::string key_of_rope(const JsonFields& config) {
  const json* scaling = config.find("rope_scaling");
  return scaling && !scaling->empty() ? "rope_scaling" : "rope_parameters";
}

/// Head size of the layers with a window, or of those without.
int64_t head_dim_of(const ArchSpec& arch, bool slides) {
  for (int64_t i = 0; i < arch.num_layers; ++i) {
    if ((arch.layers[static_cast<size_t>(i)].window > 0) == slides)
      return attention_sizes(arch, i).head_dim;
  }
  return arch.head_dim;
}

void read_ropes_by_layer_type(const JsonFields& config, const Family& family, ArchSpec& arch) {
  const RopeThetas thetas = *family.theta_by_layer_type;
  const std::string key = key_of_rope(config);
  const json* object = config.find(key);
  const bool by_type =
      object && (object->contains(kFullAttention) || object->contains(kSlidingAttention));
  const auto part = [&](const char* name) -> const json& {
    const auto found = by_type ? object->find(name) : json::const_iterator();
    return by_type && found != object->end() && !found->is_null() ? *found : empty_object();
  };
  // transformers 4's keys scale the layers with full attention only.
  const json& full = by_type || !object ? part(kFullAttention) : *object;
  const std::string full_path = by_type ? fmt::format("{}.{}.", key, kFullAttention) : key + ".";
  const JsonFields full_fields(full, config.where(), {}, full_path),
      sliding_fields(part(kSlidingAttention), config.where(), {},
                     fmt::format("{}.{}.", key, kSlidingAttention));
  arch.ropes = {
      RopeReader(config, full_fields, family, arch, head_dim_of(arch, false))
          .read(config.get_positive("rope_theta", thetas.full)),
      RopeReader(config, sliding_fields, family, arch, head_dim_of(arch, true))
          .read(config.get_positive("rope_local_base_freq", thetas.sliding)),
  };
  for (LayerSpec& layer : arch.layers) layer.rope = layer.window > 0 ? 1 : 0;
}

/// null if only the base differs.
json scaling_json(const RopeSpec& rope) {
  if (!rope.divisors.empty()) {
    throw DataError("the RoPE frequencies of this model cannot be expressed in a config.json", {},
                    "its rope_freqs.weight matches no scaling that transformers supports");
  }
  if (rope.type == RopeType::kDefault) return nullptr;
  json scaling = {{"rope_type", name_of(rope.type)}, {"factor", rope.factor}};
  if (rope.original_max_position_embeddings > 0) {
    scaling["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  if (rope.type == RopeType::kLlama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.attention_factor) scaling["attention_factor"] = *rope.attention_factor;
  if (rope.type == RopeType::kYarn) {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    if (rope.mscale) scaling["mscale"] = *rope.mscale;
    if (rope.mscale_all_dim) scaling["mscale_all_dim"] = *rope.mscale_all_dim;
    if (!rope.truncate) scaling["truncate"] = false;
  }
  if (rope.type == RopeType::kLongRope) {
    scaling["short_factor"] = rope.short_factor;
    scaling["long_factor"] = rope.long_factor;
  }
  return scaling;
}

}  // namespace

void read_ropes(const JsonFields& config, const Family& family, ArchSpec& arch) {
  if (family.theta_by_layer_type) return read_ropes_by_layer_type(config, family, arch);
  const std::string key = key_of_rope(config);
  const json* object = config.find(key);
  const JsonFields fields(object ? *object : empty_object(), config.where(), {}, key + ".");
  arch.ropes = {RopeReader(config, fields, family, arch, arch.head_dim)
                    .read(config.get_positive("rope_theta", RopeSpec{}.theta))};
}

namespace {

/// The older keys cannot express this RoPE together with a second one.
void write_proportional(const ArchSpec& arch, json& config) {
  const RopeSpec &full = arch.ropes.at(0), &sliding = arch.ropes.at(1);
  config["rope_parameters"] = {
      {kFullAttention,
       {{"rope_type", name_of(full.type)},
        {"rope_theta", full.theta},
        {"factor", full.factor},
        {"partial_rotary_factor", full.partial}}},
      {kSlidingAttention, {{"rope_type", name_of(sliding.type)}, {"rope_theta", sliding.theta}}},
  };
}

}  // namespace

void write_ropes(const ArchSpec& arch, const Family& family, json& config) {
  const RopeSpec& rope = arch.ropes.at(0);
  if (rope.type == RopeType::kProportional) return write_proportional(arch, config);
  config["rope_theta"] = rope.theta;
  config["rope_scaling"] = scaling_json(rope);
  if (rope.rotary_dim != arch.head_dim) {
    config["partial_rotary_factor"] =
        static_cast<double>(rope.rotary_dim) / static_cast<double>(arch.head_dim);
  }
  if (!family.theta_by_layer_type) return;
  const RopeSpec& sliding = arch.ropes.at(1);
  SFTRUN_CHECK(sliding.type == RopeType::kDefault && sliding.divisors.empty());
  if (sliding.theta != family.theta_by_layer_type->sliding)
    config["rope_local_base_freq"] = sliding.theta;
}

}  // namespace sftrun::spec
