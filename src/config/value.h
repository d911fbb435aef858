#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// A configuration value before it has a type: what YAML, an override or JSON said, and where.
namespace sftrun::config {

/// Line and column, both from 1; 0 where there is no file.
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
  std::string text;          ///< of a scalar
  bool quoted = false;       ///< "4" and !!str 4, as against 4
  std::vector<Value> items;  ///< of a list; of a map, parallel to keys
  std::vector<MapKey> keys;
  Mark mark;

  static Value scalar(std::string text, bool quoted = false);
};

/// true/false, yes/no, on/off, y/n in YAML 1.1's spellings.
std::optional<bool> parse_bool(std::string_view text);
/// Whole numbers; also 1e3 and 4.0, which are whole.
std::optional<int64_t> parse_int(std::string_view text);
/// Finite numbers; 2e-4 too, which YAML 1.1 readers take for text.
std::optional<double> parse_double(std::string_view text);

/// As a person would point at it: `four`, a list, a map, nothing.
std::string describe(const Value& value);

/// Unquoted scalars become numbers, booleans and null as PyYAML reads them.
nlohmann::ordered_json to_json(const Value& value);
Value value_from_json(const nlohmann::ordered_json& json);

}  // namespace sftrun::config
