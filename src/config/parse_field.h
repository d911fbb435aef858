#pragma once

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "choices.h"
#include "sftrun/config/binding.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/user_path.h"
#include "sftrun/core/utf8.h"

/// Assigns values to members, one overload per type. A complaint is the end of a sentence:
/// "`train.epochs` …".
namespace sftrun::config {

inline Complaint wrong_type(const Value& value) {
  return {fmt::format("is {}", describe(value)), {}};
}

inline std::optional<Complaint> check_limits(double number, const Value& value,
                                             const Limits& limits) {
  const bool low = limits.above_min ? number <= limits.min : number < limits.min;
  const bool high = limits.below_max ? number >= limits.max : number > limits.max;
  if (low || high) return wrong_type(value);
  return std::nullopt;
}

inline std::optional<Complaint> parse_field(const Value& value, const Limits&, bool& member) {
  const auto truth =
      value.kind == Value::Kind::kScalar ? parse_bool(value.text) : std::optional<bool>();
  if (!truth) return wrong_type(value);
  member = *truth;
  return std::nullopt;
}

inline std::optional<Complaint> parse_field(const Value& value, const Limits& limits,
                                            int64_t& member) {
  const auto integer =
      value.kind == Value::Kind::kScalar ? parse_int(value.text) : std::optional<int64_t>();
  if (!integer) return wrong_type(value);
  if (auto complaint = check_limits(static_cast<double>(*integer), value, limits)) return complaint;
  member = *integer;
  return std::nullopt;
}

inline std::optional<Complaint> parse_field(const Value& value, const Limits& limits,
                                            AutoInt& member) {
  if (value.kind == Value::Kind::kScalar && value.text == "auto") {
    member = {};
    return std::nullopt;
  }
  int64_t integer = 0;
  if (auto complaint = parse_field(value, limits, integer)) return complaint;
  member.value = integer;
  return std::nullopt;
}

inline std::optional<Complaint> parse_field(const Value& value, const Limits& limits,
                                            double& member) {
  const auto number =
      value.kind == Value::Kind::kScalar ? parse_double(value.text) : std::optional<double>();
  if (!number) return wrong_type(value);
  if (auto complaint = check_limits(*number, value, limits)) return complaint;
  member = *number;
  return std::nullopt;
}

/// The system takes a NUL for the end of a name.
inline std::optional<Complaint> check_text(const std::string& text) {
  if (!is_valid_utf8(text)) return Complaint{"is not valid UTF-8", "save the file as UTF-8", false};
  if (text.find('\0') != std::string::npos) return Complaint{"has a NUL byte", "remove it", false};
  return std::nullopt;
}

inline std::optional<Complaint> parse_field(const Value& value, const Limits& limits,
                                            std::string& member) {
  if (value.kind != Value::Kind::kScalar) return wrong_type(value);
  if (auto complaint = check_text(value.text)) return complaint;
  member = !limits.is_path            ? value.text
           : is_none_word(value.text) ? limits.none
                                      : expanded_home(value.text);
  return std::nullopt;
}

/// A list of strings; a single string is a list of one.
inline std::optional<Complaint> parse_field(const Value& value, const Limits& limits,
                                            std::vector<std::string>& member) {
  std::vector<std::string> texts;
  const auto add = [&](const Value& item) {
    texts.emplace_back();
    return parse_field(item, limits, texts.back());
  };
  if (value.kind == Value::Kind::kScalar) {
    if (auto complaint = add(value)) return complaint;
  } else if (value.kind == Value::Kind::kList) {
    for (const Value& item : value.items) {
      if (auto complaint = add(item)) {
        return Complaint{"has an item that " + complaint->what, complaint->fix,
                         complaint->show_takes};
      }
    }
  } else {
    return wrong_type(value);
  }
  member = std::move(texts);
  return std::nullopt;
}

/// Whether a text is a regular expression that is no name of a module.
inline bool is_expression(const std::string& text) {
  return text.find_first_of("\\^$*+?()[]{}|") != std::string::npos;
}

/// A list of names, or a text: all-linear, a name, or a regular expression.
inline std::optional<Complaint> parse_field(const Value& value, const Limits& limits,
                                            TargetModules& member) {
  TargetModules targets;
  if (auto complaint = parse_field(value, limits, targets.names)) return complaint;
  if (value.kind == Value::Kind::kScalar && is_expression(value.text)) {
    targets.expression = value.text;
    targets.names.clear();
  }
  member = std::move(targets);
  return std::nullopt;
}

/// JSON would hold another number, or a text.
inline std::optional<Complaint> check_numbers(const Value& value) {
  const std::string number = number_beyond_json(value);
  if (number.empty()) return std::nullopt;
  return Complaint{"has " + number, "write another number, or in quotes, as a text", false};
}

inline std::optional<Complaint> parse_field(const Value& value, const Limits&,
                                            nlohmann::ordered_json& member) {
  if (value.kind != Value::Kind::kMap) return wrong_type(value);
  if (auto complaint = check_numbers(value)) return complaint;
  member = to_json(value);
  return std::nullopt;
}

/// A rule, a device for the whole model, or a map of modules to devices.
std::optional<Complaint> parse_field(const Value& value, const Limits& limits, DeviceMap& member);

/// A list of parts, or a map of parts to lora and full.
std::optional<Complaint> parse_field(const Value& value, const Limits& limits, TrainParts& member);

/// A map of parts to learning rates.
std::optional<Complaint> parse_field(const Value& value, const Limits& limits, PartRates& member);

/// A map of names to {input_width, hidden, tokens}.
std::optional<Complaint> parse_field(const Value& value, const Limits& limits, Projectors& member);

/// The name of a loss, a list of names, or a map of names to weights.
std::optional<Complaint> parse_field(const Value& value, const Limits& limits, LossMixture& member);

/// Rewards (`parse_rewards`).
std::optional<Complaint> parse_field(const Value& value, const Limits& limits, RewardSpecs& member);

/// A path, a map that has one, or a list of these.
std::optional<Complaint> parse_field(const Value& value, const Limits& limits,
                                     std::vector<DataSource>& member);

/// What to write instead of a word that is known, but not supported.
template <class E>
std::string supported_instead() {
  if (!Words<E>::instead.empty()) return std::string(Words<E>::instead);
  std::vector<std::string> words;
  for (const auto& word : Words<E>::all)
    if (word.kind == WordKind::kMain) words.emplace_back(word.text);
  return "use " + joined(words, " or ");
}

template <class E>
requires std::is_enum_v<E> std::optional<Complaint> parse_field(const Value& value, const Limits&,
                                                                E& member) {
  if (value.kind != Value::Kind::kScalar) return wrong_type(value);
  const std::string text = ascii_lower(value.text);
  std::vector<std::string> known;
  for (const auto& word : Words<E>::all) {
    if (word.text != text) {
      known.emplace_back(word.text);
      continue;
    }
    if (word.kind == WordKind::kUnsupported) {
      return Complaint{fmt::format("is `{}`, which is not supported in this version", text),
                       supported_instead<E>(), false};
    }
    member = word.value;
    return std::nullopt;
  }
  std::string near = nearest(text, known);
  if constexpr (requires { Words<E>::others; })
    for (const auto& [theirs, ours] : Words<E>::others)
      if (theirs == text) near = ours;
  std::string fix;
  if (is_unsupported<E>(near)) {
    fix = fmt::format("`{}` is not supported in this version: {}", near, supported_instead<E>());
  } else if (!near.empty()) {
    fix = fmt::format("did you mean `{}`?", near);
  }
  return Complaint{fmt::format("is `{}`", excerpt(value.text)), std::move(fix)};
}

template <class T>
std::optional<Complaint> parse_field(const Value& value, const Limits& limits,
                                     std::optional<T>& member) {
  T inner{};
  if (auto complaint = parse_field(value, limits, inner)) return complaint;
  member = inner;
  return std::nullopt;
}

template <class T>
nlohmann::ordered_json field_to_json(const T& member) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(word_of(member));
  } else {
    return member;
  }
}
/// Booleans, where these say the same.
inline nlohmann::ordered_json field_to_json(const Checkpointing& member) {
  if (member == Checkpointing::kNone || member == Checkpointing::kLayer)
    return member == Checkpointing::kLayer;
  return std::string(word_of(member));
}
inline nlohmann::ordered_json field_to_json(const DeviceMap& member) {
  return member.rule.empty() ? member.places : nlohmann::ordered_json(member.rule);
}
inline nlohmann::ordered_json field_to_json(const TargetModules& member) {
  return member.expression.empty() ? nlohmann::ordered_json(member.names)
                                   : nlohmann::ordered_json(member.expression);
}
template <class T>
nlohmann::ordered_json field_to_json(const std::optional<T>& member) {
  return member ? field_to_json(*member) : nlohmann::ordered_json(nullptr);
}
nlohmann::ordered_json field_to_json(const std::vector<DataSource>& member);
nlohmann::ordered_json field_to_json(const TrainParts& member);
nlohmann::ordered_json field_to_json(const PartRates& member);
nlohmann::ordered_json field_to_json(const Projectors& member);
nlohmann::ordered_json field_to_json(const LossMixture& member);
nlohmann::ordered_json field_to_json(const RewardSpecs& member);
inline nlohmann::ordered_json field_to_json(const AutoInt& member) {
  return member.value ? nlohmann::ordered_json(*member.value) : nlohmann::ordered_json("auto");
}

}  // namespace sftrun::config
