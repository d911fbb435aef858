#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/error.h"

/// Requests and answers of the engine as JSON objects. A struct lists the members that are keys, by
/// their own names: SFTRUN_FIELDS(model, output). The keys of a member that is such a struct are among
/// those of the whole. Every key is written; an optional without a value is null.
#define SFTRUN_FIELDS(...)               \
  template <class Visitor>               \
  void visit_fields(Visitor&& visitor) { \
    visitor(#__VA_ARGS__, __VA_ARGS__);  \
  }

namespace sftrun::app {

template <class T>
concept HasFields = requires(T& value) {
  value.visit_fields([](auto&&...) {});
};

namespace detail {

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;
template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<std::vector<T>> = true;

/// Takes the first name of "model, output".
inline std::string next_name(std::string_view& names) {
  const size_t end = std::min(names.find(','), names.size());
  const std::string name(names.substr(0, end));
  names.remove_prefix(std::min(end + 2, names.size()));
  return name;
}

/// Calls `use(name, member)` for each key, also of parts.
template <class T, class Use>
void for_each_key(T& value, const Use& use) {
  value.visit_fields([&](std::string_view names, auto&... members) {
    const auto visit = [&]<class Member>(const std::string& name, Member& member) {
      if constexpr (HasFields<Member>)
        for_each_key(member, use);
      else
        use(name, member);
    };
    (visit(next_name(names), members), ...);
  });
}

inline void check_key(bool is_right, std::string_view key, std::string_view problem) {
  if (!is_right)
    invariant_failed(__FILE__, __LINE__, fmt::format("request to the engine: {} {}", key, problem));
}

}  // namespace detail

template <class T>
nlohmann::ordered_json json_of(T value) {
  auto json = nlohmann::ordered_json();
  if constexpr (HasFields<T>) {
    detail::for_each_key(value, [&](const std::string& name, const auto& member) {
      detail::check_key(!json.contains(name), name, "appears twice");
      json[name] = json_of(member);
    });
  } else if constexpr (detail::is_optional<T>) {
    if (value) json = json_of(*value);
  } else if constexpr (detail::is_list<T>) {
    json = nlohmann::ordered_json::array();
    for (const auto& item : value) json.push_back(json_of(item));
  } else if constexpr (std::is_same_v<T, config::RunConfig>) {
    json = config::to_json(value);
  } else {
    json = value;
  }
  return json;
}

/// The inverse of `json_of`.   @param key names the value in failures
/// @throws std::logic_error naming a key that is unknown, is missing or has a value of another type:
/// both sides are of one build
template <class T>
T read_json(const nlohmann::ordered_json& json, std::string_view key = "the whole") {
  T value{};
  if constexpr (HasFields<T>) {
    detail::check_key(json.is_object(), key, "is not an object");
    std::vector<std::string> known;
    detail::for_each_key(value, [&]<class Member>(const std::string& name, Member& member) {
      detail::check_key(json.contains(name), name, "is missing");
      member = read_json<Member>(json.at(name), name);
      known.push_back(name);
    });
    for (const auto& [name, _] : json.items())
      detail::check_key(std::ranges::find(known, name) != known.end(), name, "is unknown");
  } else if constexpr (detail::is_optional<T>) {
    if (!json.is_null()) value = read_json<typename T::value_type>(json, key);
  } else if constexpr (detail::is_list<T>) {
    detail::check_key(json.is_array(), key, "is not a list");
    for (const auto& item : json) value.push_back(read_json<typename T::value_type>(item, key));
  } else if constexpr (std::is_same_v<T, config::RunConfig>) {
    value = config::from_json(json);
  } else {
    try {
      json.get_to(value);
    } catch (const nlohmann::json::exception& error) {
      detail::check_key(false, key, error.what());
    }
  }
  return value;
}

}  // namespace sftrun::app
