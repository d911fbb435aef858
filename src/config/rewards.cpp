#include "sftrun/config/rewards.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>

#include "parse_field.h"
#include "sftrun/config/server_url.h"
#include "sftrun/config/yaml_reader.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"

/// Lists of rewards in configurations.
namespace sftrun::config {
namespace {

using RewardJson = nlohmann::ordered_json;

constexpr auto kOwnKeys = std::to_array<std::string_view>({"name", "weight", "label"});

std::vector<std::string> reward_names() {
  std::vector<std::string> names(kRewards.size());
  std::transform(kRewards.begin(), kRewards.end(), names.begin(),
                 [](const RewardInfo& info) { return std::string(info.name); });
  return names;
}

const RewardInfo* find_reward(std::string_view name) {
  const auto* found = std::find_if(kRewards.begin(), kRewards.end(),
                                   [&](const RewardInfo& info) { return info.name == name; });
  return found == kRewards.end() ? nullptr : found;
}

std::string fix_of_name(const std::string& name) {
  for (const RewardInfo& info : kRewards)
    if (info.other_names.contains(name)) return fmt::format("did you mean `{}`?", info.name);
  const std::vector<std::string> names = reward_names();
  const std::string near = nearest(name, names);
  return near.empty() ? "the rewards are " + joined(names, " and ")
                      : fmt::format("did you mean `{}`?", near);
}

/// "a whole number from 1"; its maximum only where `value` is above it
std::string takes(const RewardSetting& setting, const Value& value) {
  const bool is_above = std::strtod(value.text.c_str(), nullptr) > setting.max;
  const auto from = [&](const char* what) {
    if (setting.min == std::numeric_limits<double>::lowest())
      return fmt::format("{} up to {:g}", what, setting.max);
    return fmt::format("{} {} {:g}{}", what, setting.above_min ? "above" : "from", setting.min,
                       is_above ? fmt::format(" up to {}", setting.max) : "");
  };
  using enum RewardSetting::Type;
  switch (setting.type) {
    case kText:
      return "a text";
    case kTexts:
      return "a list of texts";
    case kNumber:
      return from("a number");
    case kCount:
      return from("a whole number");
    case kFlag:
      return "true or false";
    case kChoice: {
      const std::vector<std::string> words(setting.choices.begin(), setting.choices.end());
      return joined(words, " or ");
    }
  }
  invariant_failed(__FILE__, __LINE__, "a type of setting");
}

/// @param complaint receives the end of a sentence if the value does not fit
template <class T>
RewardJson taken(const Value& value, const Limits& limits, std::optional<Complaint>& complaint) {
  T member{};
  complaint = parse_field(value, limits, member);
  return complaint ? RewardJson() : RewardJson(member);
}

RewardJson read_setting(const RewardSetting& setting, const Value& value,
                        std::optional<Complaint>& complaint) {
  const Limits limits{.min = setting.min, .max = setting.max, .above_min = setting.above_min};
  using enum RewardSetting::Type;
  switch (setting.type) {
    case kText:
      return taken<std::string>(value, limits, complaint);
    case kTexts:
      return taken<std::vector<std::string>>(value, limits, complaint);
    case kNumber:
      return taken<double>(value, limits, complaint);
    case kCount:
      return taken<int64_t>(value, limits, complaint);
    case kFlag:
      return taken<bool>(value, limits, complaint);
    case kChoice: {
      RewardJson word = taken<std::string>(value, limits, complaint);
      if (!complaint && !setting.choices.contains(word.get<std::string>()))
        complaint = wrong_type(value);
      return word;
    }
  }
  invariant_failed(__FILE__, __LINE__, "a type of setting");
}

class RewardsReader {
 public:
  RewardsReader(std::string place, Problems& problems)
      : place_(std::move(place)), problems_(problems) {}

  RewardSpecs read(const Value& value) {
    RewardSpecs specs;
    const bool is_list = value.kind == Value::Kind::kList;
    if (is_list && value.items.empty())
      add("the list of rewards is empty", value.mark, "name at least one: [exact_match]");
    for (const Value& item : is_list ? value.items : std::vector<Value>{value})
      if (auto spec = read_one(item)) specs.push_back(std::move(*spec));
    require_labels(specs);
    return specs;
  }

 private:
  std::string at(const Mark& mark) const {
    return mark.line > 0 ? fmt::format("{}:{}:{}", place_, mark.line, mark.column) : place_;
  }
  void add(std::string message, const Mark& mark, std::string fix) {
    problems_.push_back({std::move(message), at(mark), std::move(fix)});
  }

  static const Value* find(const Value& map, std::string_view key) {
    for (size_t i = 0; i < map.keys.size(); ++i)
      if (map.keys[i].text == key && map.items[i].kind != Value::Kind::kNull) return &map.items[i];
    return nullptr;
  }

  std::optional<RewardSpec> read_one(const Value& item) {
    if (item.kind == Value::Kind::kScalar) return read_map(item.text, item, item.mark);
    if (item.kind != Value::Kind::kMap) {
      add(fmt::format("a reward is {}", describe(item)), item.mark,
          "write a name, or a map: {name: length, target: 200}");
      return std::nullopt;
    }
    const Value* name = find(item, "name");
    if (name != nullptr && name->kind == Value::Kind::kScalar)
      return read_map(name->text, item, name->mark);
    add("a reward has no name", item.mark, "the names are " + joined(reward_names(), " and "));
    return std::nullopt;
  }

  std::optional<RewardSpec> read_map(const std::string& name, const Value& item,
                                     const Mark& name_mark) {
    const RewardInfo* info = find_reward(name);
    if (info == nullptr) {
      add(fmt::format("unknown reward `{}`", excerpt(name)), name_mark, fix_of_name(name));
      return std::nullopt;
    }
    const size_t num_before = problems_.size();
    RewardSpec spec{.reward = info->reward,
                    .label = name,
                    .settings = RewardJson::object(),
                    .where = at(name_mark)};
    for (const RewardSetting& setting : info->settings)
      spec.settings[std::string(setting.name)] =
          setting.fallback.empty() ? RewardJson() : RewardJson::parse(setting.fallback);
    for (size_t i = 0; i < item.keys.size(); ++i)
      if (item.items[i].kind != Value::Kind::kNull)
        read_key(*info, item.keys[i], item.items[i], spec);
    require_settings(*info, item, name_mark);
    if (problems_.size() == num_before) check_values(spec, item);
    return problems_.size() == num_before ? std::optional(std::move(spec)) : std::nullopt;
  }

  void read_key(const RewardInfo& info, const MapKey& key, const Value& value, RewardSpec& spec) {
    if (key.text == "name") return;
    std::optional<Complaint> complaint;
    if (key.text == "label") {
      complaint = parse_field(value, {}, spec.label);
      if (!complaint && trim(spec.label).empty()) complaint = Complaint{"is empty", {}};
      report(info, key, value, complaint, "a text");
    } else if (key.text == "weight") {
      complaint = parse_field(value, {}, spec.weight);
      if (!complaint && spec.weight == 0)
        complaint = Complaint{"is 0, with which the reward has no effect", {}};
      report(info, key, value, complaint, "a number other than 0");
    } else if (const RewardSetting* setting = find_setting(info, key.text)) {
      RewardJson taken = read_setting(*setting, value, complaint);
      report(info, key, value, complaint, takes(*setting, value));
      if (!complaint) spec.settings[key.text] = std::move(taken);
    } else {
      refuse_key(info, key);
    }
  }

  void report(const RewardInfo& info, const MapKey& key, const Value& value,
              const std::optional<Complaint>& complaint, const std::string& takes_words) {
    if (!complaint) return;
    add(fmt::format("`{}` of the reward {} {}; it takes {}", key.text, info.name, complaint->what,
                    takes_words),
        value.mark, complaint->fix);
  }

  static const RewardSetting* find_setting(const RewardInfo& info, std::string_view name) {
    const auto found = std::find_if(info.settings.begin(), info.settings.end(),
                                    [&](const RewardSetting& one) { return one.name == name; });
    return found == info.settings.end() ? nullptr : &*found;
  }

  void refuse_key(const RewardInfo& info, const MapKey& key) {
    std::vector<std::string> known(kOwnKeys.begin(), kOwnKeys.end());
    for (const RewardSetting& setting : info.settings) known.emplace_back(setting.name);
    const std::string near = nearest(key.text, known);
    add(fmt::format("unknown key `{}` of the reward {}", excerpt(key.text), info.name), key.mark,
        near.empty() ? "its keys are " + joined(known, " and ")
                     : fmt::format("did you mean `{}`?", near));
  }

  void require_settings(const RewardInfo& info, const Value& item, const Mark& mark) {
    for (const RewardSetting& setting : info.settings) {
      const Value* given = find(item, setting.name);
      if (setting.is_required && given == nullptr)
        add(fmt::format("the reward {} has no `{}`", info.name, setting.name), mark,
            fmt::format("write {{name: {}, {}: {}}}", info.name, setting.name, setting.example));
      if (given != nullptr && !setting.only_with.empty() &&
          find(item, setting.only_with) == nullptr)
        add(fmt::format("`{}` of the reward {} has no effect without `{}`", setting.name, info.name,
                        setting.only_with),
            given->mark, fmt::format("remove it, or set {}", setting.only_with));
    }
    if (info.exactly_one.size() == 0) return;
    const auto is_given = [&](std::string_view name) { return find(item, name) != nullptr; };
    const auto num_given =
        std::count_if(info.exactly_one.begin(), info.exactly_one.end(), is_given);
    if (num_given == 1) return;
    const std::vector<std::string> names(info.exactly_one.begin(), info.exactly_one.end());
    add(fmt::format("the reward {} has {}", info.name,
                    num_given == 0 ? "no " + joined(names, " and no ") : joined(names, " and ")),
        mark, "write one of them");
  }

  /// What depends on values, and not on their types.
  void check_values(const RewardSpec& spec, const Value& item) {
    if (const auto pattern = spec.settings.find("pattern"); pattern != spec.settings.end()) {
      const auto text = pattern->get<std::string>();
      if (const std::string problem = regex_problem(text); !problem.empty())
        add(fmt::format("`pattern` of the reward {} is not a regular expression: {}: {}",
                        spec.label, excerpt(text), problem),
            find(item, "pattern")->mark, "write it as for Python's re");
    }
    if (const auto command = spec.settings.find("command");
        command != spec.settings.end() && trim(command->get_ref<const std::string&>()).empty())
      add(fmt::format("`command` of the reward {} is empty", spec.label),
          find(item, "command")->mark, "write the program that judges: python3 judge.py");
    for (const RewardSetting& setting : reward_info(spec.reward).settings)
      if (setting.url_end) require_url(spec, setting, item);
    require_consistent(spec, item);
  }

  void require_url(const RewardSpec& spec, const RewardSetting& setting, const Value& item) {
    const RewardJson& url = spec.settings.at(std::string(setting.name));
    if (url.is_null()) return;
    const auto text = url.get<std::string>();
    const std::string fault = fault_of_server_url(text, *setting.url_end);
    if (fault.empty()) return;
    add(fmt::format("`{}` of the reward {} is `{}`, {}", setting.name, spec.label,
                    excerpt(without_credentials(text)), fault),
        find(item, setting.name)->mark,
        fmt::format("write, for example, {}; a token is read from the variable that "
                    "`token_variable` names",
                    setting.example));
  }

  void require_consistent(const RewardSpec& spec, const Value& item) {
    const auto of = [&](const char* name) { return spec.settings.value(name, RewardJson()); };
    if (of("keys").is_array() && !of("keys").empty() && of("type") == "array")
      add("`keys` of the reward json are of an object, and `type` is array",
          find(item, "type")->mark, "remove one of them");
    if (of("maximum").is_number() && of("margin").get<int64_t>() > of("maximum").get<int64_t>())
      add("`margin` of the reward length is above its maximum", find(item, "margin")->mark,
          "the margin lies below the maximum: DAPO has 16384 and 4096");
    if (of("tags").is_array() && !are_tags(of("tags")))
      add("`tags` of the reward format are not different names of letters, digits, _ and -",
          find(item, "tags")->mark, "write, for example, [think, answer]");
  }

  static bool are_tags(const RewardJson& tags) {
    std::set<std::string> names;
    for (const RewardJson& tag : tags) {
      const auto name = tag.get<std::string>();
      const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
        return is_word_char(c) || c == '-';
      });
      if (!is_name || !names.insert(name).second) return false;
    }
    return !names.empty();
  }

  void require_labels(const RewardSpecs& specs) {
    std::set<std::string> labels;
    for (const RewardSpec& spec : specs)
      if (!labels.insert(spec.label).second)
        problems_.push_back({fmt::format("two rewards are called `{}`", spec.label), spec.where,
                             "give one of them a label of its own: {name: …, label: …}"});
  }

  std::string place_;
  Problems& problems_;
};

}  // namespace

RewardSpecs parse_rewards(const Value& value, const std::string& place, Problems& problems) {
  return RewardsReader(place, problems).read(value);
}

/// A configuration reports one complaint for each key: the first problem of the list.
std::optional<Complaint> parse_field(const Value& value, const Limits&, RewardSpecs& member) {
  Problems problems;
  const bool is_none = value.kind == Value::Kind::kList && value.items.empty();
  RewardSpecs specs =
      is_none ? RewardSpecs() : parse_rewards(value, "train.rollouts.reward", problems);
  if (!problems.empty())
    return Complaint{fmt::format("cannot be used: {}", problems.front().message),
                     problems.front().fix, /*show_takes=*/false};
  member = std::move(specs);
  return std::nullopt;
}

nlohmann::ordered_json field_to_json(const RewardSpecs& member) {
  return to_json(member);
}

RewardSpecs read_rewards(const std::string& file) {
  Problems problems;
  Value document = parse_yaml(read_text_file(file), file, problems);
  throw_if_any(problems);
  const bool is_named = document.kind == Value::Kind::kMap && document.keys.size() == 1 &&
                        document.keys[0].text == "reward";
  RewardSpecs specs = parse_rewards(is_named ? document.items[0] : document, file, problems);
  throw_if_any(problems);
  return specs;
}

nlohmann::ordered_json to_json(const RewardSpecs& rewards) {
  RewardJson list = RewardJson::array();
  for (const RewardSpec& spec : rewards) {
    const RewardInfo& info = reward_info(spec.reward);
    RewardJson json = {{"name", info.name}};
    if (spec.label != info.name) json["label"] = spec.label;
    if (spec.weight != 1) json["weight"] = spec.weight;
    for (const RewardSetting& setting : info.settings) {
      const RewardJson& value = spec.settings.at(std::string(setting.name));
      const RewardJson fallback =
          setting.fallback.empty() ? RewardJson() : RewardJson::parse(setting.fallback);
      if (value != fallback) json[std::string(setting.name)] = value;
    }
    list.push_back(json.size() == 1 ? RewardJson(info.name) : std::move(json));
  }
  return list;
}

RewardSpecs without_ways(RewardSpecs rewards) {
  for (RewardSpec& spec : rewards)
    for (const RewardSetting& setting : reward_info(spec.reward).settings)
      if (setting.may_change)
        spec.settings[std::string(setting.name)] =
            setting.fallback.empty() ? RewardJson() : RewardJson::parse(setting.fallback);
  return rewards;
}

std::string reward_reference() {
  std::string text;
  for (const RewardInfo& info : kRewards) {
    std::string description(info.description);
    description[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(description[0])));
    text += fmt::format("### {}\n{}.\n\n`{}`\n\n", info.name, description, info.formula);
    text += "| setting | default | meaning |\n|---|---|---|\n";
    for (const RewardSetting& setting : info.settings) {
      text += fmt::format("| `{}` | {} | {} |\n", setting.name,
                          setting.is_required        ? "required"
                          : setting.fallback.empty() ? "none"
                                                     : fmt::format("`{}`", setting.fallback),
                          setting.description);
    }
    text += "\n";
  }
  return text;
}

}  // namespace sftrun::config
