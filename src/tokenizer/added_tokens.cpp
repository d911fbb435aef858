#include "added_tokens.h"

#include <algorithm>

#include "sftrun/core/utf8.h"
#include "unicode.h"

namespace sftrun::tokenizer {

const uint32_t* StringSet::child(uint32_t node, char c) const {
  const auto& children = nodes_[node].children;
  const auto found =
      std::lower_bound(children.begin(), children.end(), c,
                       [](const auto& entry, char value) { return entry.first < value; });
  return found != children.end() && found->first == c ? &found->second : nullptr;
}

void StringSet::add(std::string_view text, TokenId id) {
  if (text.empty()) return;
  first_bytes_.set(static_cast<unsigned char>(text[0]));
  uint32_t node = 0;
  for (const char c : text) {
    if (const uint32_t* next = child(node, c)) {
      node = *next;
      continue;
    }
    const auto created = static_cast<uint32_t>(nodes_.size());
    auto& children = nodes_[node].children;
    children.insert(std::upper_bound(children.begin(), children.end(), std::pair(c, created)),
                    {c, created});
    nodes_.emplace_back();
    node = created;
  }
  nodes_[node].id = id;
}

std::optional<StringSet::Match> StringSet::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!first_bytes_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t end = begin; end < text.size(); ++end) {
      const uint32_t* next = child(node, text[end]);
      if (!next) break;
      node = *next;
      if (nodes_[node].id >= 0) {
        longest =
            Match{static_cast<uint32_t>(begin), static_cast<uint32_t>(end + 1), nodes_[node].id};
      }
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

namespace {

bool ends_with_word(std::string_view text) {
  return !text.empty() && PropertyTable::get().is_rust_word(decode_last_char(text).code);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && PropertyTable::get().is_rust_word(decode_char(text.data()).code);
}

size_t without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    const DecodedChar c = decode_last_char(text);
    if (!is_white_space(c.code)) break;
    text.remove_suffix(c.num_bytes);
  }
  return text.size();
}

size_t leading_space(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const DecodedChar c = decode_char(text.data() + length);
    if (!is_white_space(c.code)) break;
    length += c.num_bytes;
  }
  return length;
}

}  // namespace

std::vector<AddedTokens::Stretch> AddedTokens::split(std::string_view text, bool normalized) const {
  const StringSet& set = sets_[normalized];
  std::vector<Stretch> out;
  size_t done = 0, from = 0;
  while (const auto match = set.find(text, from)) {
    from = match->end;
    const AddedToken& token = *find(match->id);
    size_t begin = match->begin, end = match->end;
    if (token.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    if (token.lstrip) begin = std::max(without_trailing_space(text.substr(0, begin)), done);
    if (token.rstrip) end += leading_space(text.substr(end));
    if (done < begin)
      out.push_back({static_cast<uint32_t>(done), static_cast<uint32_t>(begin), std::nullopt});
    out.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), match->id});
    done = end;
  }
  if (done < text.size())
    out.push_back({static_cast<uint32_t>(done), static_cast<uint32_t>(text.size()), std::nullopt});
  return out;
}

void AddedTokens::index(size_t position, const std::string& sought) {
  const AddedToken& token = tokens_[position];
  sets_[token.normalized].add(sought, token.id);
  by_id_[token.id] = position;
  by_content_[token.content] = position;
}

const AddedToken* AddedTokens::find(TokenId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

}  // namespace sftrun::tokenizer
