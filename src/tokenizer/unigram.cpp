#include "unigram.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "sftrun/core/error.h"
#include "sftrun/core/utf8.h"
#include "unicode.h"

namespace sftrun::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10.0;  // as in the library and in sentencepiece

std::vector<std::pair<std::string, TokenId>> numbered(const UnigramSource& source) {
  std::vector<std::pair<std::string, TokenId>> out;
  out.reserve(source.pieces.size());
  for (const auto& [text, score] : source.pieces)
    out.emplace_back(text, static_cast<TokenId>(out.size()));
  return out;
}

}  // namespace

Unigram::Unigram(const UnigramSource& source, const std::string& where)
    : texts_(texts_by_id(numbered(source), where)), byte_fallback_(source.byte_fallback) {
  if (source.unk_id) {
    if (*source.unk_id < 0 || static_cast<size_t>(*source.unk_id) >= source.pieces.size()) {
      throw DataError(fmt::format("`unk_id` is {}, but there are {} tokens", *source.unk_id,
                                  source.pieces.size()),
                      where);
    }
    unk_id_ = *source.unk_id;
  }
  double lowest = std::numeric_limits<double>::infinity();
  std::vector<std::pair<std::string_view, int32_t>> entries;
  for (const auto& [text, score] : source.pieces) {
    if (!std::isfinite(score))
      throw DataError(fmt::format("the score of the token `{}` is NaN or infinite", text), where);
    const auto id = static_cast<TokenId>(scores_.size());
    // If several tokens have the same text, the last one counts, as in the library.
    if (!text.empty() && texts_.find(text) == id) entries.emplace_back(texts_.at(id), id);
    scores_.push_back(score);
    lowest = std::min(lowest, score);
  }
  trie_ = DoubleArray(std::move(entries));
  unk_score_ = lowest - kUnknownPenalty;
  for (int byte = 0; byte < 256; ++byte)
    byte_ids_.push_back(texts_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1));
}

void Unigram::encode(std::string_view word, Scratch& scratch, std::vector<Symbol>& out) const {
  out.clear();
  find_path(word, scratch.path);
  take_path(scratch.path, out);
  name_unknown(word, out);
}

/// path[i]: the last token of the best segmentation of the first i bytes.
void Unigram::find_path(std::string_view word, std::vector<Scratch::PathNode>& path) const {
  path.assign(word.size() + 1, {});
  uint32_t char_bytes = 0;
  for (uint32_t begin = 0; begin < word.size(); begin += char_bytes) {
    char_bytes = decode_char(word.data() + begin).num_bytes;
    const double score_here = path[begin].score;
    bool has_single = false;
    const auto offer = [&](uint32_t length, double score, TokenId id) {
      Scratch::PathNode& node = path[begin + length];
      if (node.begin != UINT32_MAX && !(score > node.score)) return;
      node = {score, begin, id};
    };
    trie_.prefixes(word.substr(begin), [&](uint32_t length, TokenId id) {
      offer(length, scores_[static_cast<size_t>(id)] + score_here, id);
      has_single = has_single || length == char_bytes;
    });
    if (has_single) continue;
    offer(char_bytes, unk_score_ + score_here, unk_id_);
    if (unk_id_ < 0 && path[begin + char_bytes].id < 0)
      throw DataError("the text needs an unknown token, but the tokenizer's model has none");
  }
}

/// Follows the path backwards; adjacent unknown tokens become one.
void Unigram::take_path(const std::vector<Scratch::PathNode>& path,
                        std::vector<Symbol>& out) const {
  for (auto end = static_cast<uint32_t>(path.size() - 1); end > 0;) {
    const Scratch::PathNode& node = path[end];
    if (node.id == unk_id_ && !out.empty() && out.back().id == unk_id_) {
      out.back().begin = node.begin;
    } else {
      out.push_back({node.id, node.begin, end});
    }
    end = node.begin;
  }
  std::reverse(out.begin(), out.end());
}

/// Encodes an unknown stretch: as the token with that text if there is one, as the tokens of its
/// bytes, or as the unknown token.
void Unigram::name_unknown(std::string_view word, std::vector<Symbol>& out) const {
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i].id != unk_id_) continue;
    const Symbol unknown = out[i];
    const std::string_view text = word.substr(unknown.begin, unknown.end - unknown.begin);
    if (const auto id = texts_.find(text)) {
      out[i].id = *id;
      continue;
    }
    const auto id_of = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
    const bool has_bytes = byte_fallback_ && std::all_of(text.begin(), text.end(),
                                                         [&](char c) { return id_of(c) >= 0; });
    if (!has_bytes) continue;
    std::vector<Symbol> bytes;
    for (uint32_t at = unknown.begin; at < unknown.end; ++at)
      bytes.push_back({id_of(word[at]), at, at + 1});
    out.erase(out.begin() + static_cast<ptrdiff_t>(i));
    out.insert(out.begin() + static_cast<ptrdiff_t>(i), bytes.begin(), bytes.end());
    i += bytes.size() - 1;
  }
}

void Unigram::write_json(std::string& out) const {
  out += json_field("type", "\"Unigram\"");
  out += json_field("unk_id", unk_id_ < 0 ? "null" : std::to_string(unk_id_));
  out += json_field("byte_fallback", json_flag(byte_fallback_)) + "\"vocab\": [";
  for (size_t i = 0; i < scores_.size(); ++i) {
    out += (i == 0 ? "\n[" : ",\n[") + json_string(texts_.at(static_cast<TokenId>(i))) + ", " +
           fmt::format("{}", scores_[i]) + "]";
  }
  out += "\n]";
}

}  // namespace sftrun::tokenizer
