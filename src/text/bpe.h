#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sftrun/text/tokenizer.h"
#include "vocabulary.h"

namespace sftrun::text {

struct BpeOptions {
  /// Tokens begin as characters, and texts of the vocabulary are meant as they stand
  /// (SentencePiece); else as bytes, in their visible writing (GPT-2).
  bool characters = false;
  bool byte_fallback = false;  ///< of characters: one without a token is its bytes' <0x..> tokens
  std::string
      unk_token;  ///< for bytes without a token; empty: such bytes are left out, as in the library
  bool fuse_unk = false;       ///< one unknown token for a run of such bytes
  bool ignore_merges = false;  ///< a word that is a token is that token, whatever the merges say
};

struct BpeSource {
  std::vector<std::pair<std::string, TokenId>> vocab;  ///< visible text and id
  std::vector<std::pair<std::string, std::string>>
      merges;  ///< visible texts, the most wanted first
  BpeOptions options;
};

/// Pairs of tokens that merge: (left, right) to rank and result, in open addressing.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    uint32_t rank = kNoRank;
    TokenId result = -1;
  };
  MergeTable() = default;
  explicit MergeTable(size_t num_merges);
  void set(TokenId left, TokenId right, Merge merge);
  Merge find(TokenId left, TokenId right) const {
    const uint64_t key = key_of(left, right);
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == kFree) return {};
    }
  }
  /// Pairs in order of rank.
  std::vector<std::pair<TokenId, TokenId>> in_order() const;

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ULL >> 32) & mask_; }
  std::vector<Slot> slots_ = std::vector<Slot>(1);
  size_t mask_ = 0;
};

/// What one thread keeps from word to word: scratch space, and the tokens of words it has met
/// (bounded, direct-mapped).
class BpeWorkspace {
 public:
  static constexpr size_t kMaxWordBytes = 31, kMaxWordTokens = 7, kNumSlots = 1 << 15;
  struct alignas(64) Slot {
    std::array<uint64_t, 4> key{};  ///< the word's bytes, then zeros; its length in the last byte
    std::array<TokenId, kMaxWordTokens> ids{};
    uint32_t num_ids = 0;
  };
  struct Symbol {
    TokenId id;
    uint32_t begin, end;  ///< bytes of the word
  };
  Slot& slot_of(const std::array<uint64_t, 4>& key) {
    uint64_t hash = key[3];
    for (int i = 0; i < 3; ++i)
      hash = (hash ^ key[static_cast<size_t>(i)]) * 0x9FB21C651E98DF25ULL, hash ^= hash >> 29;
    return slots_[(hash * 0x9E3779B97F4A7C15ULL) >> 49];
  }
  std::vector<Symbol> symbols;
  std::vector<MergeTable::Merge> merges;  ///< of each symbol with the next

 private:
  std::vector<Slot> slots_ = std::vector<Slot>(kNumSlots);
};
static_assert(BpeWorkspace::kNumSlots == 1ULL << (64 - 49));

/// Byte-pair encoding over bytes (arXiv:1508.07909): of all neighbours that have a merge, the one
/// of lowest rank merges first, the leftmost of equals; until none is left. Immutable.
class Bpe {
 public:
  /// @throws DataError for merges of unknown tokens and impossible ids
  Bpe(const BpeSource& source, const std::string& where);

  /// Appends the tokens of a word (not empty), and the bytes of the word that each covers if
  /// `spans` is not null.
  void encode(std::string_view word, BpeWorkspace& workspace, std::vector<TokenId>& ids,
              std::vector<ByteSpan>* spans) const;

  const StringTable& vocab() const { return texts_; }  ///< visible texts
  const MergeTable& merges() const { return merges_; }
  const BpeOptions& options() const { return options_; }

 private:
  using Symbol = BpeWorkspace::Symbol;
  void read_vocab(const BpeSource& source, const std::string& where);
  void read_merges(const BpeSource& source, const std::string& where);
  bool start_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
  bool start_characters(std::string_view word, std::vector<Symbol>& symbols) const;
  bool fall_back(std::string_view character, uint32_t begin, std::vector<Symbol>& symbols) const;
  void read_bytes(const std::string& where);
  void merge_few(BpeWorkspace& workspace) const;
  void merge_many(std::vector<Symbol>& symbols) const;
  bool take_cached(const BpeWorkspace::Slot& slot, std::vector<TokenId>& ids,
                   std::vector<ByteSpan>* spans) const;

  BpeOptions options_;
  StringTable texts_;  ///< visible text of each id
  StringTable words_;  ///< bytes of each id whose text is visible bytes throughout; or its text
  MergeTable merges_;
  std::array<TokenId, 256> byte_ids_;  ///< of bytes, or of their fallbacks; -1: there is none
  TokenId unk_id_ = -1;
};

}  // namespace sftrun::text
