#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "json_text.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/weights/peft.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Keys of PEFT's LoraConfig that are read here, or that do not change what an adapter computes.
constexpr std::array<std::string_view, 24> kKnown = {"peft_type",
                                                     "rank_pattern",
                                                     "alpha_pattern",
                                                     "base_model_name_or_path",
                                                     "r",
                                                     "lora_alpha",
                                                     "lora_dropout",
                                                     "target_modules",
                                                     "target_parameters",
                                                     "use_rslora",
                                                     "modules_to_save",
                                                     "task_type",
                                                     "init_lora_weights",
                                                     "auto_mapping",
                                                     "peft_version",
                                                     "revision",
                                                     "inference_mode",
                                                     "qalora_group_size",
                                                     "megatron_core",
                                                     "runtime_config",
                                                     "bias",
                                                     "fan_in_fan_out",
                                                     "layers_pattern",
                                                     "eva_config"};

/// The ways to start an adapter that leave the base weights as they are; the others (pissa, olora,
/// loftq, …) change them, so that the adapter fits another base than the file it names.
constexpr std::array<std::string_view, 3> kPlainInitialisations = {"gaussian", "eva", "orthogonal"};

std::string shown(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// What PEFT 0.21 itself writes into `rank_pattern` and `alpha_pattern`.
constexpr std::string_view kGateUpPattern = ".*\\.gate_up_proj";

/// null, false, [], {} or "": the feature is off.
bool is_off(const json& value) {
  return value.is_null() || value == json(false) ||
         ((value.is_structured() || value.is_string()) && value.empty());
}

constexpr int64_t kMostRank = 1 << 20;

class ConfigReader {
 public:
  ConfigReader(const json& config, std::string where) : config_(config), where_(std::move(where)) {
    if (!config_.is_object()) throw DataError("not a JSON object", where_);
  }

  AdapterConfig read() const {
    refuse_unsupported();
    AdapterConfig result;
    result.base_model_name_or_path = text("base_model_name_or_path", "");
    result.revision = text("revision", "");
    result.task_type = text("task_type", "");
    result.r = rank();
    result.lora_alpha = number("lora_alpha", 8.0);
    result.lora_dropout = number("lora_dropout", 0.0);
    if (!(result.lora_dropout >= 0 && result.lora_dropout < 1))
      fail("lora_dropout", "at least 0 and less than 1");
    result.use_rslora = flag("use_rslora");
    result.modules_to_save = names("modules_to_save");
    read_targets(result);
    read_patterns(result);
    return result;
  }

 private:
  const json* find(std::string_view key) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void fail(std::string_view key, std::string_view expected) const {
    const json* value = find(key);
    throw DataError(
        fmt::format("`{}` must be {}; it is {}", key, expected, value ? shown(*value) : "missing"),
        where_);
  }

  [[noreturn]] void fail_unsupported(std::string_view what) const {
    throw DataError(fmt::format("{} is not supported", what), where_,
                    "supported are LoRA adapters, with or without rank-stabilised scaling");
  }

  void refuse_unsupported() const {
    const std::string type = text("peft_type", "");
    if (type.empty()) fail("peft_type", "\"LORA\"");
    if (type != "LORA") fail_unsupported(fmt::format("the adapter type \"{}\"", type));
    if (text("bias", "none") != "none")
      fail_unsupported(
          fmt::format("an adapter with trained biases (`bias: {}`)", text("bias", "")));
    if (flag("fan_in_fan_out")) fail_unsupported("`fan_in_fan_out`");
    if (flag("use_dora")) fail_unsupported("DoRA (`use_dora`)");
    const json* initialisation = find("init_lora_weights");
    if (initialisation && !initialisation->is_boolean()) {
      const std::string name = text("init_lora_weights", "");
      const bool plain = std::find(kPlainInitialisations.begin(), kPlainInitialisations.end(),
                                   name) != kPlainInitialisations.end();
      if (!plain)
        fail_unsupported(
            fmt::format("`init_lora_weights: {}`, which changes the base model,", name));
    }
    for (const auto& [key, value] : config_.items()) {
      const bool known = std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end();
      if (!known && !is_off(value)) fail_unsupported(fmt::format("`{}: {}`", key, shown(value)));
    }
  }

  int64_t rank() const {
    const json* value = find("r");
    if (!value) return 8;
    if (!value->is_number_integer() || value->get<int64_t>() < 1 ||
        value->get<int64_t>() > kMostRank)
      fail("r", "a positive integer");
    return value->get<int64_t>();
  }

  double number(std::string_view key, double otherwise) const {
    const json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_number() || !std::isfinite(value->get<double>())) fail(key, "a number");
    return value->get<double>();
  }

  bool flag(std::string_view key) const {
    const json* value = find(key);
    if (!value) return false;
    if (!value->is_boolean()) fail(key, "true or false");
    return value->get<bool>();
  }

  std::string text(std::string_view key, const std::string& otherwise) const {
    const json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_string()) fail(key, "a string");
    return value->get<std::string>();
  }

  std::vector<std::string> names(std::string_view key) const {
    const json* value = find(key);
    if (!value) return {};
    if (!value->is_array()) fail(key, "a list of names");
    std::vector<std::string> result;
    for (const json& name : *value) {
      if (!name.is_string() || name.get<std::string>().empty()) fail(key, "a list of names");
      result.push_back(name.get<std::string>());
    }
    return result;
  }

  void read_targets(AdapterConfig& result) const {
    const json* targets = find("target_modules");
    if (!targets) fail("target_modules", "a list of names or a regular expression");
    if (!targets->is_string()) {
      result.target_modules = names("target_modules");
      std::sort(result.target_modules.begin(),
                result.target_modules.end());  // PEFT writes a set, in any order
    } else {
      result.target_modules = {targets->get<std::string>()};
      result.target_is_pattern = result.target_modules[0] != "all-linear";
    }
    result.target_parameters = names("target_parameters");
    std::sort(result.target_parameters.begin(), result.target_parameters.end());
    if (result.target_modules.empty() && !result.target_parameters.empty()) return;
    if (result.target_modules.empty() || result.target_modules[0].empty())
      fail("target_modules", "not empty");
  }

  void read_patterns(AdapterConfig& result) const {
    const double r = of_gate_up("rank_pattern");
    if (r == 0 && of_gate_up("alpha_pattern") == 0) return;
    if (r != std::floor(r) || r > kMostRank) fail("rank_pattern", "of whole ranks");
    result.gate_up_r = r > 0 ? static_cast<int64_t>(r) : result.r;
    const double alpha = of_gate_up("alpha_pattern");
    result.gate_up_alpha = alpha > 0 ? alpha : result.lora_alpha;
  }

  /// The one value that a pattern may hold; 0: none.
  double of_gate_up(std::string_view key) const {
    const json* pattern = find(key);
    if (!pattern || is_off(*pattern)) return 0;
    const bool is_known = pattern->is_object() && pattern->size() == 1 &&
                          pattern->begin().key() == kGateUpPattern &&
                          pattern->begin()->is_number() && pattern->begin()->get<double>() > 0;
    if (!is_known) fail_unsupported(fmt::format("`{}: {}`", key, shown(*pattern)));
    return pattern->begin()->get<double>();
  }

  const json& config_;
  std::string where_;
};

/// 16 rather than 16.0, as PEFT writes it.
json plain_number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

/// A pattern, empty where gate_up_proj has the rank of the others.
json of_gate_up(int64_t gate_up_r, const json& value) {
  return gate_up_r > 0 ? json{{kGateUpPattern, value}} : json::object();
}

}  // namespace

AdapterConfig AdapterConfig::load(const fs::path& directory) {
  const fs::path path = directory / "adapter_config.json";
  if (!fs::exists(path)) {
    throw DataError("no adapter_config.json in this directory", directory.string(),
                    "give a directory in PEFT's layout");
  }
  const json config = parse_json(read_text_file(path), path.string());
  return ConfigReader(config, path.string()).read();
}

json AdapterConfig::to_json() const {
  const json targets = target_is_pattern ? json(target_modules.at(0)) : json(target_modules);
  return {
      {"peft_type", "LORA"},
      {"task_type", task_type.empty() ? json(nullptr) : json(task_type)},
      {"base_model_name_or_path", base_model_name_or_path},
      {"revision", revision.empty() ? json(nullptr) : json(revision)},
      {"auto_mapping", nullptr},
      {"inference_mode", true},
      {"r", r},
      {"lora_alpha", plain_number(lora_alpha)},
      {"lora_dropout", lora_dropout},
      {"target_modules", targets},
      {"target_parameters", target_parameters.empty() ? json(nullptr) : json(target_parameters)},
      {"modules_to_save", modules_to_save.empty() ? json(nullptr) : json(modules_to_save)},
      {"use_rslora", use_rslora},
      {"use_dora", false},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"init_lora_weights", true},
      {"layers_to_transform", nullptr},
      {"layers_pattern", nullptr},
      {"rank_pattern", of_gate_up(gate_up_r, gate_up_r)},
      {"alpha_pattern", of_gate_up(gate_up_r, plain_number(gate_up_alpha))},
      {"loftq_config", json::object()},
  };
}

std::string lora_a_name(const std::string& module) {
  return "base_model.model." + module + ".lora_A.weight";
}
bool names_single_experts(const std::string& target) {
  static constexpr std::array<const char*, 7> kNames = {"gate",      "w1",      "w2",       "w3",
                                                        "gate_proj", "up_proj", "down_proj"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](const char* name) { return ends_with_name(target, name); });
}
std::string peft_expert_module(const std::string& parameter, bool both_adapted) {
  const std::string experts = parameter.substr(0, parameter.rfind('.'));
  return both_adapted && parameter.ends_with("gate_up_proj") ? experts + ".base_layer" : experts;
}

std::string lora_b_name(const std::string& module) {
  return "base_model.model." + module + ".lora_B.weight";
}

}  // namespace sftrun::weights
