#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sftrun {

/// What it takes to hold a JSON text as a value, told before it is parsed.
struct JsonShape {
  /// How deeply brackets and braces are nested; those in strings do not count. A parser takes any
  /// depth, but what copies or prints a value calls itself for each level.
  size_t depth = 0;
  /// Comparisons of keys: an object that keeps its order looks through all that it has for each.
  uint64_t key_steps = 0;
  uint64_t num_keys = 0;    ///< of the object that has most
  uint64_t num_values = 0;  ///< about: each takes some tens of bytes, be it an empty list
};
/// Looks no further where brackets nest deeper than `most_depth`.
JsonShape json_shape(std::string_view text, size_t most_depth);

/// Whether objects keep the order of their keys (nlohmann::ordered_json) or sort them.
enum class KeyOrder { kKept, kSorted };

/// Whether it is neither deeper than that nor past the limits.
bool is_modest_json(std::string_view text, size_t most_depth, KeyOrder order = KeyOrder::kKept);
/// What of the limits, but depth, it is past; empty: of none. Sorted keys are found without a
/// search through all: the index of a model of experts has 100,000 of them.
std::string json_excess(const JsonShape& shape, KeyOrder order = KeyOrder::kKept);

}  // namespace sftrun
