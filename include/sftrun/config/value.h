#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// A configuration value without a type, as read from YAML, an override or JSON, and its place.
namespace sftrun::config {

/// Line and column, from 1; 0: no file.
struct Mark {
  int line = 0, column = 0;
};

struct MapKey {
  std::string text;
  Mark mark;
};

struct Value {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  std::string text;          ///< of a scalar; of null as written: "", "~", "null"
  bool quoted = false;       ///< "4" and !!str 4, in contrast to 4
  std::vector<Value> items;  ///< of a list; of a map, parallel to keys
  std::vector<MapKey> keys;
  Mark mark;

  static Value scalar(std::string text, bool quoted = false);
};

/// true/false, yes/no, on/off, y/n in YAML 1.1's spellings.
std::optional<bool> parse_bool(std::string_view text);
/// Whole numbers; also 1e3 and 4.0, which are whole.
std::optional<int64_t> parse_int(std::string_view text);
/// Finite numbers; also 2e-4, which YAML 1.1 reads as text.
std::optional<double> parse_double(std::string_view text);

/// A number in the value that JSON cannot hold, and why: "the number .inf, which is not finite"; empty: none.
std::string number_beyond_json(const Value& value);

/// Describes the value for messages: `four`, a list, a map, nothing.
std::string describe(const Value& value);

/// Unquoted scalars become numbers, booleans and null as PyYAML reads them.
nlohmann::ordered_json to_json(const Value& value);
Value value_from_json(const nlohmann::ordered_json& json);

}  // namespace sftrun::config
