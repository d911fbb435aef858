#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::tokenizer {

/// 64-bit hash of a few bytes; not secure against deliberate collisions.
inline uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = 0x9E3779B97F4A7C15ULL ^ bytes.size();
  const auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * 0xFF51AFD7ED558CCDULL;
    hash ^= hash >> 32;
  };
  while (bytes.size() >= 8) {
    uint64_t word;
    __builtin_memcpy(&word, bytes.data(), 8);
    mix(word);
    bytes.remove_prefix(8);
  }
  uint64_t tail = 0;
  __builtin_memcpy(&tail, bytes.data(), bytes.size());
  mix(tail);
  return hash;
}

/// Strings in one block of memory, found by id and by content (open addressing over ids).
class StringTable {
 public:
  /// @param strings one per id; nullopt for ids without a string
  explicit StringTable(const std::vector<std::optional<std::string>>& strings);
  StringTable() = default;

  size_t size() const {
    return offsets_.empty() ? 0 : offsets_.size() - 1;
  }  ///< one more than the largest id
  bool has(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < size() && present_[static_cast<size_t>(id)];
  }
  /// The string of an id that `has`.
  std::string_view at(TokenId id) const {
    const auto i = static_cast<size_t>(id);
    return std::string_view(bytes_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  std::optional<TokenId> find(std::string_view text) const;
  size_t count() const { return count_; }

 private:
  std::string bytes_;
  std::vector<uint32_t> offsets_;
  std::vector<bool> present_;
  std::vector<TokenId> slots_;  ///< -1: free; the size is a power of two
  size_t count_ = 0;
};

}  // namespace sftrun::tokenizer
