#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "json_text.h"
#include "sftrun/core/error.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"
#include "sftrun/weights/peft.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

/// Keys of PEFT's LoraConfig that are read here, or that do not affect an adapter's output.
constexpr std::array<std::string_view, 29> kKnown = {"peft_type",
                                                     "rank_pattern",
                                                     "alpha_pattern",
                                                     "base_model_name_or_path",
                                                     "r",
                                                     "lora_alpha",
                                                     "lora_dropout",
                                                     "target_modules",
                                                     "target_parameters",
                                                     "use_rslora",
                                                     "use_dora",
                                                     "modules_to_save",
                                                     "trainable_token_indices",
                                                     "ensure_weight_tying",
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
                                                     "layers_to_transform",
                                                     "exclude_modules",
                                                     "eva_config"};

/// Initialisations that do not change the base weights, and PiSSA, whose change is reproducible.
/// The others (olora, loftq, …) change them, so that the adapter does not fit the base that the
/// file names.
constexpr std::array<std::string_view, 4> kPlainInitialisations = {"gaussian", "eva", "orthogonal",
                                                                   "pissa"};

std::string shown(const json& value) {
  return excerpt(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

/// null, false, [], {} or "": the feature is disabled.
bool is_off(const json& value) {
  return value.is_null() || value == json(false) ||
         ((value.is_structured() || value.is_string()) && value.empty());
}

constexpr int64_t kMaxRank = 1 << 20;

class ConfigReader {
 public:
  /// @param ordered the same object, for patterns, whose order matters
  ConfigReader(const json& config, const ordered_json& ordered, std::string where)
      : config_(config), ordered_(ordered), where_(std::move(where)) {
    if (!config_.is_object()) throw DataError("not a JSON object", where_);
  }

  AdapterConfig read() const {
    refuse_unsupported();
    AdapterConfig result;
    result.base_model_name_or_path = text("base_model_name_or_path", "");
    result.revision = text("revision", "");
    result.task_type = text("task_type", "");
    result.lora.r = rank();
    result.lora.alpha = number("lora_alpha", 8.0);
    result.lora.dropout = number("lora_dropout", 0.0);
    if (!(result.lora.dropout >= 0 && result.lora.dropout < 1))
      fail("lora_dropout", "at least 0 and less than 1");
    result.lora.rslora = flag("use_rslora");
    result.lora.dora = flag("use_dora");
    result.lora.pissa = find("init_lora_weights") && *find("init_lora_weights") == json("pissa");
    result.lora.modules_to_save = names("modules_to_save");
    result.trainable_tokens = tokens("trainable_token_indices");
    result.ensure_weight_tying = flag("ensure_weight_tying");
    read_targets(result.lora);
    result.left_out = left_out();
    result.lora.rank_pattern = pattern("rank_pattern", /*of_ranks=*/true);
    result.lora.alpha_pattern = pattern("alpha_pattern", /*of_ranks=*/false);
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
                    "supported: LoRA adapters, with rank-stabilised scaling (rsLoRA), DoRA and "
                    "modules_to_save");
  }

  void refuse_unsupported() const {
    const std::string type = text("peft_type", "");
    if (type.empty()) fail("peft_type", "\"LORA\"");
    if (type != "LORA") fail_unsupported(fmt::format("the adapter type \"{}\"", type));
    if (text("bias", "none") != "none")
      fail_unsupported(
          fmt::format("an adapter with trained biases (`bias: {}`)", text("bias", "")));
    if (flag("fan_in_fan_out")) fail_unsupported("`fan_in_fan_out`");
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
      if (!known && !is_off(value))
        fail_unsupported(fmt::format("`{}: {}`", excerpt(key), shown(value)));
    }
  }

  int64_t rank() const {
    const json* value = find("r");
    if (!value) return 8;
    if (!value->is_number_integer() || value->get<int64_t>() < 1 ||
        value->get<int64_t>() > kMaxRank)
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

  std::vector<int64_t> ids(const json& list, std::string_view key) const {
    const bool sound = list.is_array() && std::all_of(list.begin(), list.end(), [](const json& id) {
                         return id.is_number_integer() && id >= 0;
                       });
    if (!sound) fail(key, "a list of token ids, or one list per module");
    return list.get<std::vector<int64_t>>();
  }

  std::map<std::string, std::vector<int64_t>> tokens(std::string_view key) const {
    const json* value = find(key);
    if (!value || value->empty()) return {};
    if (!value->is_object()) return {{"embed_tokens", ids(*value, key)}};
    std::map<std::string, std::vector<int64_t>> result;
    for (const auto& [module, list] : value->items()) result[module] = ids(list, key);
    return result;
  }

  void read_targets(spec::LoraSpec& result) const {
    const json* targets = find("target_modules");
    if (!targets) fail("target_modules", "a list of names or a regular expression");
    if (!targets->is_string()) {
      result.target_modules = names("target_modules");
      std::sort(result.target_modules.begin(),
                result.target_modules.end());  // PEFT writes a set, in any order
    } else if (*targets == "all-linear" || targets->get<std::string>().empty()) {
      result.target_modules = {targets->get<std::string>()};
    } else {
      result.target_modules.clear();
      result.target_pattern = spec::target_pattern(targets->get<std::string>(),
                                                   where_ + ": target_modules", ExitCode::kData);
    }
    result.target_parameters = names("target_parameters");
    std::sort(result.target_parameters.begin(), result.target_parameters.end());
    if (result.target_pattern) return;
    if (result.target_modules.empty() && !result.target_parameters.empty()) return;
    if (result.target_modules.empty() || result.target_modules[0].empty())
      fail("target_modules", "a non-empty list");
  }

  /// A name alone or a list of names.
  std::vector<std::string> name_or_names(std::string_view key) const {
    const json* value = find(key);
    if (value == nullptr || !value->is_string()) return names(key);
    return value->empty() ? std::vector<std::string>() : std::vector{value->get<std::string>()};
  }

  AdapterConfig::LeftOut left_out() const {
    AdapterConfig::LeftOut result;
    const json* excluded = find("exclude_modules");
    if (excluded != nullptr && excluded->is_string() && !excluded->get<std::string>().empty())
      result.pattern = spec::target_pattern(excluded->get<std::string>(),
                                            where_ + ": exclude_modules", ExitCode::kData);
    else if (excluded != nullptr && !excluded->is_string())
      result.names = names("exclude_modules");
    const json* layers = find("layers_to_transform");
    if (layers != nullptr && layers->is_number_integer())
      result.layers = {layers->get<int64_t>()};
    else if (layers != nullptr)
      result.layers = layer_numbers(*layers);
    for (const std::string& word : name_or_names("layers_pattern"))
      result.before_layer.push_back(
          spec::target_pattern(".*\\." + word, where_ + ": layers_pattern", ExitCode::kData));
    const json* targets = find("target_modules");
    if (targets != nullptr && targets->is_array()) result.whole_names = names("target_modules");
    return result;
  }

  std::vector<int64_t> layer_numbers(const json& list) const {
    const bool sound =
        list.is_array() && std::all_of(list.begin(), list.end(),
                                       [](const json& one) { return one.is_number_integer(); });
    if (!sound) fail("layers_to_transform", "a list of the numbers of layers");
    return list.get<std::vector<int64_t>>();
  }

  spec::NamePattern pattern(const char* key, bool of_ranks) const {
    const auto found = ordered_.find(key);
    if (found == ordered_.end() || found->is_null()) return {};
    spec::NamePattern result;
    if (!found->is_object()) fail(key, "an object with names as keys");
    for (const auto& [name, value] : found->items()) {
      const bool is_rank = value.is_number_integer() && value.get<int64_t>() >= 1 &&
                           value.get<int64_t>() <= kMaxRank;
      if (of_ranks && !is_rank) fail(key, "an object of positive integers");
      if (!value.is_number() || !std::isfinite(value.get<double>()))
        fail(key, "an object of numbers");
      result.emplace_back(
          spec::NameEnding(name, fmt::format("{}: {}", where_, key), ExitCode::kData),
          value.get<double>());
    }
    return result;
  }

  const json& config_;
  const ordered_json& ordered_;
  std::string where_;
};

/// Writes 16 rather than 16.0, like PEFT.
ordered_json plain_number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

ordered_json written(const spec::NamePattern& pattern) {
  ordered_json result = ordered_json::object();
  for (const auto& [name, value] : pattern) result[name.expression()] = plain_number(value);
  return result;
}

}  // namespace

namespace {

/// The last number in a name that is a layer's, as PEFT finds it.
std::optional<int64_t> layer_of(const std::string& module,
                                const std::vector<PythonRegex>& before_layer) {
  const std::vector<std::string> parts = split(module, '.');
  for (size_t i = parts.size() - 1; i-- > 2;) {
    int64_t number = 0;
    const char* const end = parts[i].data() + parts[i].size();
    const auto [read, code] = std::from_chars(parts[i].data(), end, number);
    if (code != std::errc() || read != end) continue;
    const std::string before = join(
        std::vector<std::string>(parts.begin(), parts.begin() + static_cast<ptrdiff_t>(i)), ".");
    if (before_layer.empty() ||
        std::any_of(before_layer.begin(), before_layer.end(),
                    [&](const PythonRegex& pattern) { return pattern.matches(before); }))
      return number;
  }
  return std::nullopt;
}

bool has_name(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool AdapterConfig::LeftOut::covers(const std::string& module) const {
  if (pattern && pattern->matches(module)) return true;
  if (std::any_of(names.begin(), names.end(),
                  [&](const std::string& name) { return ends_with_name(module, name); }))
    return true;
  if (layers.empty() || has_name(whole_names, module)) return false;
  const auto layer = layer_of(module, before_layer);
  return !layer || std::find(layers.begin(), layers.end(), *layer) == layers.end();
}

AdapterConfig AdapterConfig::load(const fs::path& directory) {
  const fs::path path = directory / "adapter_config.json";
  if (!has_optional_file(path)) {
    throw DataError("no adapter_config.json in this directory", directory.string(),
                    "give a directory in PEFT's layout");
  }
  const std::string text = read_text_file(path);
  const json config = parse_json(text, path.string());
  const auto ordered = parse_python_json<ordered_json>(text);  // rank_pattern keeps its order
  if (ordered.is_discarded())
    throw DataError("a JSON object of too many keys", path.string(), "is this the right file?");
  return ConfigReader(config, ordered, path.string()).read();
}

ordered_json AdapterConfig::to_json() const {
  const ordered_json targets = lora.target_pattern ? ordered_json(lora.target_pattern->pattern())
                                                   : ordered_json(lora.target_modules);
  const auto or_null = [](const auto& value) {
    return value.empty() ? ordered_json(nullptr) : ordered_json(value);
  };
  return {
      {"peft_type", "LORA"},
      {"task_type", or_null(task_type)},
      {"base_model_name_or_path", base_model_name_or_path},
      {"revision", or_null(revision)},
      {"auto_mapping", nullptr},
      {"inference_mode", true},
      {"r", lora.r},
      {"lora_alpha", plain_number(lora.alpha)},
      {"lora_dropout", lora.dropout},
      {"target_modules", targets},
      {"target_parameters", or_null(lora.target_parameters)},
      {"modules_to_save", or_null(lora.modules_to_save)},
      {"use_rslora", lora.rslora},
      {"use_dora", lora.dora},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"init_lora_weights", true},
      {"layers_to_transform", nullptr},
      {"layers_pattern", nullptr},
      {"rank_pattern", written(lora.rank_pattern)},
      {"alpha_pattern", written(lora.alpha_pattern)},
      {"loftq_config", ordered_json::object()},
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

LoraNames lora_names(const std::string& module) {
  return {lora_a_name(module), lora_b_name(module)};
}

LoraNames embedding_lora_names(const std::string& module) {
  const std::string name = "base_model.model." + module;
  return {name + ".lora_embedding_A", name + ".lora_embedding_B"};
}

std::string magnitude_name(const std::string& module) {
  return "base_model.model." + module + ".lora_magnitude_vector";
}

std::string saved_name(const std::string& tensor) {
  return "base_model.model." + tensor;
}

std::string saved_tensor(const std::string& name) {
  constexpr std::string_view kPrefix = "base_model.model.";
  const bool is_update = name.find(".lora_") != std::string::npos;
  return is_update || !name.starts_with(kPrefix) ? "" : name.substr(kPrefix.size());
}

}  // namespace sftrun::weights
