#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace sftrun::tokenizer {

/// A trie of byte strings as a double array (Aoe 1989): a step is two memory accesses. Immutable.
class DoubleArray {
 public:
  DoubleArray() = default;
  /// @param entries non-empty strings without duplicates, with their values (not negative)
  explicit DoubleArray(std::vector<std::pair<std::string_view, int32_t>> entries);

  /// Calls `found(length, value)` for each entry that the text begins with, shorter ones first.
  template <class Found>
  void prefixes(std::string_view text, Found&& found) const {
    if (nodes_.empty()) return;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint32_t next = nodes_[node].base + static_cast<uint8_t>(text[i]);
      if (nodes_[next].parent != node) return;
      node = next;
      if (nodes_[node].value >= 0) found(static_cast<uint32_t>(i + 1), nodes_[node].value);
    }
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Node {
    uint32_t base = 0;  ///< children are at base + their byte
    uint32_t parent = kFree;
    int32_t value = -1;
  };
  struct Builder;
  std::vector<Node> nodes_;
};

}  // namespace sftrun::tokenizer
