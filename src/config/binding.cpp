#include "sftrun/config/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "choices.h"
#include "fields.h"
#include "parse_field.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

template <class T>
constexpr FieldType type_of() {
  if constexpr (std::is_enum_v<T>)
    return FieldType::kChoice;
  else if constexpr (std::is_same_v<T, bool>)
    return FieldType::kBool;
  else if constexpr (std::is_same_v<T, int64_t>)
    return FieldType::kInt;
  else if constexpr (std::is_same_v<T, AutoInt>)
    return FieldType::kAutoInt;
  else if constexpr (std::is_same_v<T, double>)
    return FieldType::kNumber;
  else if constexpr (std::is_same_v<T, std::string>)
    return FieldType::kText;
  else if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return FieldType::kTextList;
  else if constexpr (std::is_same_v<T, TargetModules>)
    return FieldType::kTargets;
  else if constexpr (std::is_same_v<T, std::vector<DataSource>>)
    return FieldType::kSources;
  else if constexpr (std::is_same_v<T, DeviceMap>)
    return FieldType::kDeviceMap;
  else if constexpr (std::is_same_v<T, TrainParts>)
    return FieldType::kParts;
  else if constexpr (std::is_same_v<T, PartRates>)
    return FieldType::kPartRates;
  else if constexpr (std::is_same_v<T, Projectors>)
    return FieldType::kProjectors;
  else if constexpr (std::is_same_v<T, LossMixture>)
    return FieldType::kLosses;
  else if constexpr (std::is_same_v<T, RewardSpecs>)
    return FieldType::kRewards;
  else
    return FieldType::kObject;
}

template <class E>
void add_words(Field& field) {
  for (const auto& word : Words<E>::all) {
    auto& list = word.kind == WordKind::kMain    ? field.words
                 : word.kind == WordKind::kAlias ? field.aliases
                                                 : field.unsupported_words;
    list.emplace_back(word.text);
  }
}

/// Appends the fields of one section; a second copy of the section supplies the defaults.
class FieldCollector {
 public:
  FieldCollector(std::string section, std::vector<Field>& fields)
      : section_(std::move(section)), fields_(fields) {}

  template <class T>
  void operator()(T& member, std::string_view name, const Limits& limits, OnResume on_resume,
                  std::string_view help, std::string_view example) {
    using Inner = decltype(inner_type(member));
    Field field;
    field.key = fmt::format("{}.{}", section_, name);
    field.type = type_of<Inner>();
    field.limits = limits;
    field.on_resume = on_resume;
    field.help = help;
    field.example = example;
    if constexpr (std::is_enum_v<Inner>) add_words<Inner>(field);
    field.assign = [&member, limits](const Value& value) {
      return parse_field(value, limits, member);
    };
    field.get = [&member] { return field_to_json(member); };
    field.reset = [&member, initial = member] { member = initial; };
    fields_.push_back(std::move(field));
  }

 private:
  template <class T>
  static T inner_type(const T&);
  template <class T>
  static T inner_type(const std::optional<T>&);

  std::string section_;
  std::vector<Field>& fields_;
};

std::string number_limits(const Limits& limits) {
  std::string text;
  if (std::isfinite(limits.min)) {
    text = limits.above_min ? fmt::format(" above {}", limits.min)
                            : fmt::format(" of at least {}", limits.min);
  }
  if (std::isfinite(limits.max)) {
    text += text.empty() ? "" : " and";
    text += limits.below_max ? fmt::format(" below {}", limits.max)
                             : fmt::format(" at most {}", limits.max);
  }
  return text;
}

}  // namespace

std::string Field::takes() const {
  switch (type) {
    case FieldType::kBool:
      return "true or false";
    case FieldType::kInt:
      return "a whole number" + number_limits(limits);
    case FieldType::kAutoInt:
      return "auto or a whole number" + number_limits(limits);
    case FieldType::kNumber:
      return "a number" + number_limits(limits);
    case FieldType::kText:
      return "text";
    case FieldType::kTextList:
      return "a list of strings";
    case FieldType::kTargets:
      return "a list of strings, or a regular expression";
    case FieldType::kChoice:
      return joined(words, " or ");
    case FieldType::kObject:
      return "a map";
    case FieldType::kDeviceMap:
      return "auto, balanced, sequential or a map of modules to devices";
    case FieldType::kSources:
      return "a path or a list of paths and {path, …}";
    case FieldType::kParts:
      return "a list of language, projector and vision, or a map of these to lora or full";
    case FieldType::kPartRates:
      return "a map of parts to numbers" + number_limits(limits);
    case FieldType::kProjectors:
      return "a map of names to {input_width, hidden, tokens}";
    case FieldType::kLosses:
      return "the name of a loss, or a map of losses to weights";
    case FieldType::kRewards:
      return "the name of a reward, a map with its settings, or a list of these";
  }
  return {};
}

Field* Binding::find(const std::string& key) {
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const Field& field) { return field.key == key; });
  return found == fields.end() ? nullptr : &*found;
}

bool Binding::has_section(const std::string& name) const {
  return std::any_of(sections.begin(), sections.end(),
                     [&](const Section& section) { return section.name == name; });
}

Binding bind(RunConfig& config) {
  Binding binding;
  visit_sections(config, [&](std::string_view name, auto& part, std::string_view help) {
    binding.sections.push_back({std::string(name), std::string(help)});
    FieldCollector collector(std::string(name), binding.fields);
    visit_fields(part, collector);
  });
  return binding;
}

}  // namespace sftrun::config
