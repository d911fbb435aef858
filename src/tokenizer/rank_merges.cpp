#include "rank_merges.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "sftrun/core/utf8.h"
#include "vocabulary.h"

namespace sftrun::tokenizer {
namespace {

struct Merge {
  double priority;
  uint32_t left_chars;
  uint32_t left, right;  ///< indices of tokens
};

struct HashBytes {
  size_t operator()(std::string_view text) const { return hash_bytes(text); }
};

/// For each length in bytes: whether a token has it. Skips hashing prefixes of other lengths, which
/// takes quadratic time for long tokens.
std::vector<bool> lengths_of(const std::vector<RankedToken>& tokens) {
  std::vector<bool> found;
  for (const RankedToken& token : tokens) {
    if (token.text.size() >= found.size()) found.resize(token.text.size() + 1);
    found[token.text.size()] = true;
  }
  return found;
}

void sort_merges(std::vector<Merge>& merges, const std::vector<RankedToken>& tokens,
                 MergeTies ties) {
  const auto key = [&](const Merge& m) {
    const bool by_length = ties == MergeTies::kLongLeftFirst;
    return std::tuple(m.priority, by_length ? -static_cast<int64_t>(m.left_chars) : 0,
                      tokens[m.left].id, tokens[m.right].id);
  };
  std::sort(merges.begin(), merges.end(),
            [&](const Merge& a, const Merge& b) { return key(a) < key(b); });
}

}  // namespace

std::vector<std::pair<std::string, std::string>> merges_by_rank(
    const std::vector<RankedToken>& tokens, MergeTies ties, bool of_bytes) {
  std::unordered_map<std::string_view, uint32_t, HashBytes> position_of;
  position_of.reserve(tokens.size());
  for (uint32_t i = 0; i < tokens.size(); ++i) position_of.emplace(tokens[i].text, i);
  const std::vector<bool> lengths = lengths_of(tokens);
  std::vector<Merge> merges;
  for (const RankedToken& token : tokens) {
    uint32_t left_chars = 0;
    for (size_t at = 1; at < token.text.size(); ++at) {
      if (!of_bytes && is_continuation_byte(token.text[at])) continue;
      ++left_chars;
      if (!lengths[at] || !lengths[token.text.size() - at]) continue;
      const auto left = position_of.find(token.text.substr(0, at));
      if (left == position_of.end()) continue;
      const auto right = position_of.find(token.text.substr(at));
      if (right == position_of.end()) continue;
      merges.push_back({token.priority, left_chars, left->second, right->second});
    }
  }
  sort_merges(merges, tokens, ties);
  std::vector<std::pair<std::string, std::string>> out;
  out.reserve(merges.size());
  for (const Merge& merge : merges)
    out.emplace_back(tokens[merge.left].text, tokens[merge.right].text);
  return out;
}

}  // namespace sftrun::tokenizer
