#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model.h"

namespace sftrun::tokenizer {

struct BpeOptions {
  /// Words start as bytes, and the vocabulary has GPT-2's visible characters for them; else words
  /// start as characters, and the vocabulary has plain text (SentencePiece).
  bool bytes = false;
  bool byte_fallback =
      false;  ///< character BPE: a character without a token becomes the <0x..> tokens of its bytes
  std::string
      continuing_subword_prefix;   ///< character BPE: before all tokens of a word but the first
  std::string end_of_word_suffix;  ///< character BPE: after the last token of a word
  std::string
      unk_token;  ///< for text without a token; empty: such text is omitted, as in the library
  bool fuse_unk = false;       ///< one unknown token for a run of such bytes
  bool ignore_merges = false;  ///< a word that is a token is encoded as that token, without merges
};

struct BpeSource {
  std::vector<std::pair<std::string, TokenId>> vocab;  ///< visible text and id
  std::vector<std::pair<std::string, std::string>>
      merges;  ///< visible texts, highest priority first
  BpeOptions options;
};

/// Merges of token pairs: (left, right) to rank and result, in a hash table with open addressing.
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

/// Byte-pair encoding (arXiv:1508.07909): merges the neighbours with the lowest rank, the leftmost
/// first, until no merge applies.
class Bpe final : public Model {
 public:
  /// @throws DataError for merges of unknown tokens and impossible ids
  Bpe(const BpeSource& source, const std::string& where);

  void encode(std::string_view word, Scratch& scratch, std::vector<Symbol>& out) const override;
  bool takes_bytes() const override { return options_.bytes; }
  const StringTable& vocab() const override { return texts_; }
  std::string_view unk_token() const override { return options_.unk_token; }
  void write_json(std::string& out) const override;

 private:
  void read_vocab(const BpeSource& source, const std::string& where);
  void read_merges(const BpeSource& source, const std::string& where);
  void read_bytes(const std::string& where);
  void start_bytes(std::string_view word, std::vector<Symbol>& symbols) const;
  void start_characters(std::string_view word, std::string& text,
                        std::vector<Symbol>& symbols) const;
  bool fall_back(std::string_view text, uint32_t begin, uint32_t end,
                 std::vector<Symbol>& symbols) const;
  std::optional<Symbol> unknown(uint32_t begin, uint32_t end, std::optional<Symbol> before,
                                std::vector<Symbol>& symbols) const;
  void merge_few(Scratch& scratch, std::vector<Symbol>& symbols) const;
  void merge_many(std::vector<Symbol>& symbols) const;

  BpeOptions options_;
  StringTable texts_;  ///< visible text of each id
  StringTable words_;  ///< byte BPE: the bytes of each id whose text consists of visible bytes
  MergeTable merges_;
  std::array<TokenId, 256> byte_ids_;  ///< token of each byte, or of its fallback; -1: none
  TokenId unk_id_ = -1;
};

}  // namespace sftrun::tokenizer
