#include "bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>

#include "byte_level.h"
#include "sftrun/core/error.h"
#include "unicode.h"

namespace sftrun::text {

MergeTable::MergeTable(size_t num_merges)
    : slots_(std::bit_ceil(num_merges * 2 + 2)), mask_(slots_.size() - 1) {}

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t slot = slot_of(key);
  while (slots_[slot].key != kFree && slots_[slot].key != key) slot = (slot + 1) & mask_;
  slots_[slot] = {key, merge};
}

std::vector<std::pair<TokenId, TokenId>> MergeTable::in_order() const {
  std::vector<Slot> used;
  std::copy_if(slots_.begin(), slots_.end(), std::back_inserter(used),
               [](const Slot& s) { return s.key != kFree; });
  std::sort(used.begin(), used.end(),
            [](const Slot& a, const Slot& b) { return a.merge.rank < b.merge.rank; });
  std::vector<std::pair<TokenId, TokenId>> out;
  out.reserve(used.size());
  for (const Slot& slot : used) {
    out.emplace_back(static_cast<TokenId>(slot.key >> 32),
                     static_cast<TokenId>(slot.key & UINT32_MAX));
  }
  return out;
}

Bpe::Bpe(const BpeSource& source, const std::string& where) : options_(source.options) {
  read_vocab(source, where);
  read_merges(source, where);
}

void Bpe::read_vocab(const BpeSource& source, const std::string& where) {
  // Tables are indexed by id: an id far beyond the number of tokens is a damaged file, not a
  // vocabulary.
  const int64_t limit = static_cast<int64_t>(source.vocab.size()) * 4 + (1 << 20);
  TokenId largest = -1;
  for (const auto& [text, id] : source.vocab) {
    if (id < 0 || id >= limit)
      throw DataError(fmt::format("the token `{}` has the impossible id {}", text, id), where);
    largest = std::max(largest, id);
  }
  std::vector<std::optional<std::string>> texts(static_cast<size_t>(largest) + 1),
      words(texts.size());
  for (const auto& [text, id] : source.vocab) {
    if (find_invalid_utf8(text) != std::string_view::npos) {
      throw DataError(fmt::format("the token {} is not valid UTF-8", id), where);
    }
    texts[static_cast<size_t>(id)] = text;
    words[static_cast<size_t>(id)] = options_.characters ? text : visible_to_bytes(text);
  }
  texts_ = StringTable(texts);
  words_ = StringTable(words);
  read_bytes(where);
}

void Bpe::read_bytes(const std::string& where) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto id = options_.characters ? texts_.find(fmt::format("<0x{:02X}>", byte))
                                        : words_.find(std::string_view(&c, 1));
    byte_ids_[static_cast<size_t>(byte)] = id.value_or(-1);
  }
  if (options_.unk_token.empty()) return;
  const bool all_bytes =
      std::none_of(byte_ids_.begin(), byte_ids_.end(), [](TokenId id) { return id < 0; });
  unk_id_ = texts_.find(options_.unk_token).value_or(-1);
  if (unk_id_ < 0 && !all_bytes) {
    throw DataError(fmt::format("the unk_token `{}` is not in the vocabulary", options_.unk_token),
                    where);
  }
}

void Bpe::read_merges(const BpeSource& source, const std::string& where) {
  merges_ = MergeTable(source.merges.size());
  uint32_t rank = 0;
  for (const auto& [left, right] : source.merges) {
    const auto left_id = texts_.find(left), right_id = texts_.find(right),
               result = texts_.find(left + right);
    if (!left_id || !right_id || !result) {
      const std::string& missing = !left_id ? left : !right_id ? right : left + right;
      throw DataError(
          fmt::format("merge {} (`{} {}`) needs the token `{}`, which is not in the vocabulary",
                      rank + 1, left, right, missing),
          where);
    }
    merges_.set(*left_id, *right_id, {rank++, *result});
  }
}

namespace {

/// Zero-padded bytes of the word with its length, or nothing if it is too long to be kept.
std::optional<std::array<uint64_t, 4>> cache_key(std::string_view word) {
  if (word.size() > BpeWorkspace::kMaxWordBytes) return std::nullopt;
  std::array<uint64_t, 4> key{};
  std::memcpy(key.data(), word.data(), word.size());
  key[3] |= static_cast<uint64_t>(word.size()) << 56;
  return key;
}

}  // namespace

bool Bpe::take_cached(const BpeWorkspace::Slot& slot, std::vector<TokenId>& ids,
                      std::vector<ByteSpan>* spans) const {
  ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.num_ids);
  if (!spans) return true;
  uint32_t begin = 0;
  for (uint32_t i = 0; i < slot.num_ids; ++i) {
    const auto end = begin + static_cast<uint32_t>(words_.at(slot.ids[i]).size());
    spans->push_back({begin, end});
    begin = end;
  }
  return true;
}

void Bpe::encode(std::string_view word, BpeWorkspace& workspace, std::vector<TokenId>& ids,
                 std::vector<ByteSpan>* spans) const {
  const auto key = cache_key(word);
  BpeWorkspace::Slot* const slot = key ? &workspace.slot_of(*key) : nullptr;
  if (slot && slot->key == *key) {
    take_cached(*slot, ids, spans);
    return;
  }
  std::vector<Symbol>& symbols = workspace.symbols;
  bool every_byte_known = true;
  const auto whole = options_.ignore_merges ? words_.find(word) : std::nullopt;
  if (whole) {
    symbols.assign(1, {*whole, 0, static_cast<uint32_t>(word.size())});
  } else {
    every_byte_known = start_symbols(word, symbols);
    constexpr size_t kFewSymbols = 64;  // up to here a scan for the lowest rank beats a heap
    symbols.size() <= kFewSymbols ? merge_few(workspace) : merge_many(symbols);
  }
  for (const Symbol& symbol : symbols) {
    ids.push_back(symbol.id);
    if (spans) spans->push_back({symbol.begin, symbol.end});
  }
  if (slot && every_byte_known && symbols.size() <= BpeWorkspace::kMaxWordTokens) {
    slot->key = *key;
    slot->num_ids = static_cast<uint32_t>(symbols.size());
    for (size_t i = 0; i < symbols.size(); ++i) slot->ids[i] = symbols[i].id;
  }
}

/// The tokens of a character's bytes; false where one of them has none.
bool Bpe::fall_back(std::string_view character, uint32_t begin,
                    std::vector<Symbol>& symbols) const {
  const auto id_of = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (!options_.byte_fallback ||
      std::any_of(character.begin(), character.end(), [&](char c) { return id_of(c) < 0; }))
    return false;
  for (const char c : character) {
    symbols.push_back({id_of(c), begin, begin + 1});
    ++begin;
  }
  return true;
}

/// One symbol a character. Returns whether every character has a token of its own.
bool Bpe::start_characters(std::string_view word, std::vector<Symbol>& symbols) const {
  bool every_one_known = true, after_unknown = false;
  for (uint32_t begin = 0, end = 0; begin < word.size(); begin = end) {
    end = begin + 1;
    while (end < word.size() && (static_cast<uint8_t>(word[end]) & 0xC0) == 0x80) ++end;
    const std::string_view character = word.substr(begin, end - begin);
    if (const auto id = texts_.find(character)) {
      symbols.push_back({*id, begin, end});
      after_unknown = false;
      continue;
    }
    every_one_known = false;
    if (fall_back(character, begin, symbols)) {
      after_unknown = false;
      continue;
    }
    if (unk_id_ < 0) continue;
    if (after_unknown && options_.fuse_unk) {
      symbols.back().end = end;
    } else {
      symbols.push_back({unk_id_, begin, end});
    }
    after_unknown = true;
  }
  return every_one_known;
}

/// One symbol a byte. Returns whether every byte has a token of its own.
bool Bpe::start_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
  symbols.clear();
  if (options_.characters) return start_characters(word, symbols);
  bool every_byte_known = true, after_unknown = false;
  for (uint32_t i = 0; i < word.size(); ++i) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(word[i])];
    if (id >= 0) {
      symbols.push_back({id, i, i + 1});
      after_unknown = false;
      continue;
    }
    every_byte_known = false;
    if (unk_id_ < 0) continue;
    if (after_unknown && options_.fuse_unk) {
      symbols.back().end = i + 1;
    } else {
      symbols.push_back({unk_id_, i, i + 1});
    }
    after_unknown = true;
  }
  return every_byte_known;
}

/// Quadratic in the number of symbols, without a heap: for words.
void Bpe::merge_few(BpeWorkspace& workspace) const {
  std::vector<Symbol>& symbols = workspace.symbols;
  std::vector<MergeTable::Merge>& merges = workspace.merges;
  if (symbols.size() < 2) return;
  merges.resize(symbols.size() - 1);
  for (size_t i = 0; i + 1 < symbols.size(); ++i)
    merges[i] = merges_.find(symbols[i].id, symbols[i + 1].id);
  while (!merges.empty()) {
    const auto best = std::min_element(
        merges.begin(), merges.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (best->rank == MergeTable::kNoRank) return;
    const auto i = static_cast<size_t>(best - merges.begin());
    symbols[i] = {best->result, symbols[i].begin, symbols[i + 1].end};
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(i) + 1);
    merges.erase(best);
    if (i > 0) merges[i - 1] = merges_.find(symbols[i - 1].id, symbols[i].id);
    if (i < merges.size()) merges[i] = merges_.find(symbols[i].id, symbols[i + 1].id);
  }
}

/// A heap of candidate merges over a linked list: n log n, for pieces without word boundaries.
void Bpe::merge_many(std::vector<Symbol>& symbols) const {
  constexpr uint32_t kNone = UINT32_MAX;
  struct Candidate {
    uint32_t rank, left;
    TokenId left_id, right_id, result;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  const auto n = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> previous(n), next(n);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](uint32_t left) {
    if (left == kNone || next[left] == kNone) return;
    const TokenId left_id = symbols[left].id, right_id = symbols[next[left]].id;
    const MergeTable::Merge merge = merges_.find(left_id, right_id);
    if (merge.rank != MergeTable::kNoRank)
      candidates.push({merge.rank, left, left_id, right_id, merge.result});
  };
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kNone : i - 1;
    next[i] = i + 1 == n ? kNone : i + 1;
  }
  for (uint32_t i = 0; i < n; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate c = candidates.top();
    candidates.pop();
    const uint32_t right = next[c.left];
    // Stale when one of the two has merged meanwhile.
    if (right == kNone || symbols[c.left].id != c.left_id || symbols[right].id != c.right_id)
      continue;
    symbols[c.left] = {c.result, symbols[c.left].begin, symbols[right].end};
    symbols[right].id = -1;
    next[c.left] = next[right];
    if (next[right] != kNone) previous[next[right]] = c.left;
    next[right] = kNone;
    consider(previous[c.left]);
    consider(c.left);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.id < 0; });
}

}  // namespace sftrun::text
