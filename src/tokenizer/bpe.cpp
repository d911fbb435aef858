#include "bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <queue>

#include "byte_level.h"
#include "sftrun/core/error.h"
#include "sftrun/core/utf8.h"
#include "unicode.h"

namespace sftrun::tokenizer {

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
  const std::vector<std::optional<std::string>> texts = texts_by_id(source.vocab, where);
  texts_ = StringTable(texts);
  if (options_.bytes) {
    std::vector<std::optional<std::string>> words(texts.size());
    for (size_t i = 0; i < texts.size(); ++i)
      if (texts[i]) words[i] = visible_to_bytes(*texts[i]);
    words_ = StringTable(words);
  }
  read_bytes(where);
}

void Bpe::read_bytes(const std::string& where) {
  if (options_.bytes && (options_.byte_fallback || !options_.continuing_subword_prefix.empty() ||
                         !options_.end_of_word_suffix.empty())) {
    throw DataError("a byte-level BPE model cannot have byte_fallback, prefixes or suffixes",
                    where);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto id = options_.bytes ? words_.find(std::string_view(&c, 1))
                                   : texts_.find(fmt::format("<0x{:02X}>", byte));
    byte_ids_[static_cast<size_t>(byte)] = id.value_or(-1);
  }
  if (!options_.unk_token.empty()) unk_id_ = texts_.find(options_.unk_token).value_or(-1);
}

void Bpe::read_merges(const BpeSource& source, const std::string& where) {
  merges_ = MergeTable(source.merges.size());
  uint32_t rank = 0;
  for (const auto& [left, right] : source.merges) {
    const size_t prefix = std::min(options_.continuing_subword_prefix.size(), right.size());
    const std::string whole = left + right.substr(prefix);
    const auto left_id = texts_.find(left), right_id = texts_.find(right),
               result = texts_.find(whole);
    if (!left_id || !right_id || !result) {
      const std::string& missing = !left_id ? left : !right_id ? right : whole;
      throw DataError(
          fmt::format("merge {} (`{} {}`) needs the token `{}`, which is not in the vocabulary",
                      rank + 1, left, right, missing),
          where);
    }
    merges_.set(*left_id, *right_id, {rank++, *result});
  }
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<Symbol>& out) const {
  out.clear();
  if (options_.ignore_merges) {
    if (const auto whole = (options_.bytes ? words_ : texts_).find(word)) {
      out.push_back({*whole, 0, static_cast<uint32_t>(word.size())});
      return;
    }
  }
  options_.bytes ? start_bytes(word, out) : start_characters(word, scratch.text, out);
  constexpr size_t kFewSymbols =
      64;  // up to this number a scan for the lowest rank is faster than a heap
  out.size() <= kFewSymbols ? merge_few(scratch, out) : merge_many(out);
}

/// One symbol per byte.
void Bpe::start_bytes(std::string_view word, std::vector<Symbol>& symbols) const {
  std::optional<Symbol> pending;  // an unknown token that may be extended
  for (uint32_t i = 0; i < word.size(); ++i) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(word[i])];
    if (id < 0) {
      pending = unknown(i, i + 1, pending, symbols);
      continue;
    }
    if (pending) symbols.push_back(*std::exchange(pending, std::nullopt));
    symbols.push_back({id, i, i + 1});
  }
  if (pending) symbols.push_back(*pending);
}

/// One symbol per character.
void Bpe::start_characters(std::string_view word, std::string& text,
                           std::vector<Symbol>& symbols) const {
  const std::string &prefix = options_.continuing_subword_prefix,
                    &suffix = options_.end_of_word_suffix;
  std::optional<Symbol> pending;
  for (uint32_t begin = 0, end = 0; begin < word.size(); begin = end) {
    end = begin + decode_char(word.data() + begin).num_bytes;
    std::string_view character = word.substr(begin, end - begin);
    const bool is_last = end == word.size();
    if ((begin > 0 && !prefix.empty()) || (is_last && !suffix.empty())) {
      text.assign(begin > 0 ? prefix : "").append(character).append(is_last ? suffix : "");
      character = text;
    }
    if (const auto id = texts_.find(character)) {
      if (pending) symbols.push_back(*std::exchange(pending, std::nullopt));
      symbols.push_back({*id, begin, end});
    } else if (!fall_back(character, begin, end, symbols)) {
      pending = unknown(begin, end, pending, symbols);
    }
  }
  if (pending) symbols.push_back(*pending);
}

/// The tokens of the text's bytes; false if a byte has no token.
bool Bpe::fall_back(std::string_view text, uint32_t begin, uint32_t end,
                    std::vector<Symbol>& symbols) const {
  const auto id_of = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (!options_.byte_fallback ||
      std::any_of(text.begin(), text.end(), [&](char c) { return id_of(c) < 0; }))
    return false;
  for (const char c : text) {
    symbols.push_back({id_of(c), begin, std::min(begin + 1, end)});
    begin = std::min(begin + 1, end);
  }
  return true;
}

/// Returns the unknown token that may fuse with the next one; a previous one that cannot is
/// appended.
std::optional<Symbol> Bpe::unknown(uint32_t begin, uint32_t end, std::optional<Symbol> before,
                                   std::vector<Symbol>& symbols) const {
  if (options_.unk_token.empty()) return before;
  if (unk_id_ < 0) {
    throw DataError(
        fmt::format("the text needs the tokenizer's unk_token `{}`, which is not in "
                    "its vocabulary",
                    options_.unk_token));
  }
  if (before && options_.fuse_unk) return Symbol{unk_id_, before->begin, end};
  if (before) symbols.push_back(*before);
  return Symbol{unk_id_, begin, end};
}

/// Quadratic in the number of symbols, without a heap: for words.
void Bpe::merge_few(Scratch& scratch, std::vector<Symbol>& symbols) const {
  std::vector<uint64_t>& merges = scratch.merges;  // rank and result: the lowest is the best
  if (symbols.size() < 2) return;
  const auto merge_at = [&](size_t i) {
    const MergeTable::Merge merge = merges_.find(symbols[i].id, symbols[i + 1].id);
    return static_cast<uint64_t>(merge.rank) << 32 | static_cast<uint32_t>(merge.result);
  };
  merges.resize(symbols.size() - 1);
  for (size_t i = 0; i + 1 < symbols.size(); ++i) merges[i] = merge_at(i);
  while (!merges.empty()) {
    const auto best = std::min_element(merges.begin(), merges.end());
    if (*best >> 32 == MergeTable::kNoRank) return;
    const auto i = static_cast<size_t>(best - merges.begin());
    symbols[i] = {static_cast<TokenId>(*best & UINT32_MAX), symbols[i].begin, symbols[i + 1].end};
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(i) + 1);
    merges.erase(best);
    if (i > 0) merges[i - 1] = merge_at(i - 1);
    if (i < merges.size()) merges[i] = merge_at(i);
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
    // Stale if one of the two has been merged in the meantime.
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

void Bpe::write_json(std::string& out) const {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? std::string("null") : json_string(text);
  };
  out += json_field("type", "\"BPE\"") + json_field("dropout", "null");
  out += json_field("unk_token", or_null(options_.unk_token));
  out += json_field("continuing_subword_prefix", or_null(options_.continuing_subword_prefix));
  out += json_field("end_of_word_suffix", or_null(options_.end_of_word_suffix));
  out += json_field("fuse_unk", json_flag(options_.fuse_unk));
  out += json_field("byte_fallback", json_flag(options_.byte_fallback));
  out += json_field("ignore_merges", json_flag(options_.ignore_merges));
  out += json_field("vocab", vocab_json(texts_)) + "\"merges\": [";
  bool is_first = true;
  for (const auto& [left, right] : merges_.in_order()) {
    out += (std::exchange(is_first, false) ? "\n[" : ",\n[") + json_string(texts_.at(left)) + ", " +
           json_string(texts_.at(right)) + "]";
  }
  out += "\n]";
}

}  // namespace sftrun::tokenizer
