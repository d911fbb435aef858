#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "model.h"

namespace sftrun::tokenizer {

/// A bounded, direct-mapped cache of the tokens of words: a few thousand words make up most of a
/// text.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 31, kMaxTokens = 6;
  using Key = std::array<uint64_t, 4>;
  struct alignas(64) Slot {
    Key key{};  ///< the word's bytes, then zeros; its length in the last byte. No word is empty.
    std::array<TokenId, kMaxTokens> ids{};
    std::array<uint8_t, kMaxTokens>
        ends{};  ///< where each token's bytes end; they begin at `first`
    uint8_t num_ids = 0;
    uint8_t first = 0;  ///< where the bytes of the first token begin
  };
  static_assert(sizeof(Slot) == 64);

  /// Zero-padded bytes of the word with its length; nullopt if it is too long to be cached.
  static std::optional<Key> key_of(std::string_view word) {
    if (word.size() > kMaxWordBytes) return std::nullopt;
    Key key{};
    std::memcpy(key.data(), word.data(), word.size());
    key[3] |= static_cast<uint64_t>(word.size()) << 56;
    return key;
  }
  Slot& slot_of(const Key& key) {
    uint64_t hash = key[3];
    for (size_t i = 0; i < 3; ++i)
      hash = (hash ^ key[i]) * 0x9FB21C651E98DF25ULL, hash ^= hash >> 29;
    return slots_[(hash * 0x9E3779B97F4A7C15ULL) >> (64 - kSlotBits)];
  }
  /// Tokens with gaps between them, or too many tokens, are not cached.
  static void store(Slot& slot, const Key& key, const std::vector<Symbol>& symbols) {
    if (symbols.size() > kMaxTokens) return;
    for (size_t i = 1; i < symbols.size(); ++i) {
      if (symbols[i].begin != symbols[i - 1].end) return;
    }
    slot.key = key;
    slot.num_ids = static_cast<uint8_t>(symbols.size());
    slot.first = symbols.empty() ? 0 : static_cast<uint8_t>(symbols[0].begin);
    for (size_t i = 0; i < symbols.size(); ++i) {
      slot.ids[i] = symbols[i].id;
      slot.ends[i] = static_cast<uint8_t>(symbols[i].end);
    }
  }

 private:
  static constexpr int kSlotBits = 15;
  std::vector<Slot> slots_ = std::vector<Slot>(size_t{1} << kSlotBits);
};

}  // namespace sftrun::tokenizer
