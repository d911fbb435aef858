#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sftrun {

/// Estimates, before parsing, the cost of holding a JSON text as a value.
struct JsonShape {
  /// Nesting depth of brackets and braces outside strings. The parser is not recursive, but copying
  /// or printing a value is, with one call per level.
  size_t depth = 0;
  /// Comparisons of keys: an object that keeps the order of its keys compares each new key with all
  /// earlier ones.
  uint64_t key_steps = 0;
  uint64_t num_keys = 0;    ///< of the largest object
  uint64_t num_values = 0;  ///< approximate: each takes some tens of bytes, even an empty list
};
/// Stops at brackets nested deeper than `max_depth`.
JsonShape json_shape(std::string_view text, size_t max_depth);

/// Whether objects keep the order of their keys (nlohmann::ordered_json) or sort them.
enum class KeyOrder { kKept, kSorted };

/// Whether the text is within `max_depth` and the ReadLimits.
bool is_modest_json(std::string_view text, size_t max_depth, KeyOrder order = KeyOrder::kKept);
/// Names the limits, other than depth, that are exceeded; empty: none. key_steps does not count for
/// sorted keys: the index of a model with experts may have 100,000 of them.
std::string json_excess(const JsonShape& shape, KeyOrder order = KeyOrder::kKept);

}  // namespace sftrun
