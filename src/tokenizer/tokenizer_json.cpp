#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "json_access.h"
#include "sftrun/core/error.h"
#include "sftrun/core/json_reason.h"
#include "sftrun/core/strings.h"
#include "tokenizer_source.h"

namespace sftrun::tokenizer {
namespace {

/// Reads a tokenizer.json in one pass: vocabulary and merges (megabytes) directly into their
/// tables, everything else (kilobytes) into a document.
class Reader final : public nlohmann::json_sax<Json> {
 public:
  Reader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Json document;  ///< all but the model's vocabulary and merges
  std::optional<std::vector<std::pair<std::string, TokenId>>> vocab;
  std::optional<std::vector<std::pair<std::string, double>>> pieces;  ///< a vocabulary with scores
  std::optional<std::vector<std::pair<std::string, std::string>>> merges;

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    return number(static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX)));
  }
  bool number_float(number_float_t value, const string_t&) override {
    return section_ == Section::kPieces ? piece_score(value) : scalar(value);
  }
  bool binary(binary_t&) override { return false; }

  bool string(string_t& value) override {
    if (section_ == Section::kMerges) return merge_part(value);
    if (section_ == Section::kPieces) return piece_text(value);
    return scalar(std::move(value));
  }
  bool key(string_t& name) override {
    key_ = std::move(name);
    if (depth_ == 1) top_key_ = key_;
    return true;
  }
  bool start_object(size_t) override {
    if (section_ != Section::kDocument) return misplaced("an object");
    ++depth_;
    if (in_model() && key_ == "vocab") {
      section_ = Section::kVocab;
      vocab.emplace();
      return true;
    }
    open(Json::object());
    return true;
  }
  bool end_object() override {
    --depth_;
    if (section_ == Section::kVocab) {
      section_ = Section::kDocument;
    } else {
      open_.pop_back();
    }
    return true;
  }
  bool start_array(size_t) override {
    if (section_ == Section::kVocab) return misplaced("a list");
    ++depth_;
    if (section_ != Section::kDocument) return true;
    if (in_model() && (key_ == "merges" || key_ == "vocab")) {
      section_ = key_ == "merges" ? Section::kMerges : Section::kPieces;
      list_depth_ = depth_;
      if (section_ == Section::kMerges) merges.emplace();
      if (section_ == Section::kPieces) pieces.emplace();
      return true;
    }
    open(Json::array());
    return true;
  }
  bool end_array() override {
    if (section_ == Section::kDocument) {
      open_.pop_back();
    } else if (depth_ == list_depth_) {
      section_ = Section::kDocument;
    } else {
      section_ == Section::kMerges ? end_merge() : end_piece();
    }
    --depth_;
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const std::string_view before = text_.substr(0, std::min(position, text_.size()));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    throw DataError(fmt::format("not valid JSON: {}", json_reason(error)),
                    fmt::format("{}:{}", where_, line));
  }

 private:
  enum class Section : uint8_t { kDocument, kVocab, kPieces, kMerges };

  /// Whether the value about to start is a field of `model` (depth counts the value itself).
  bool in_model() const { return depth_ == 3 && top_key_ == "model" && open_.size() == 2; }

  Json& put(Json value) {
    if (open_.empty()) return document = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_array()) return parent.emplace_back(std::move(value));
    return parent[key_] = std::move(value);
  }
  void open(Json value) {
    constexpr size_t kMaxDepth = 64;
    if (open_.size() >= kMaxDepth)
      throw DataError(fmt::format("JSON nested deeper than {} levels", kMaxDepth), where_);
    open_.push_back(&put(std::move(value)));
  }
  template <class T>
  bool scalar(T&& value) {
    if (section_ == Section::kVocab) return misplaced("a value that is not an integer");
    if (section_ == Section::kPieces) return bad_piece();
    if (section_ == Section::kMerges) return bad_merge();
    put(Json(std::forward<T>(value)));
    return true;
  }
  bool number(int64_t value) {
    if (section_ == Section::kPieces) return piece_score(static_cast<double>(value));
    if (section_ != Section::kVocab) return scalar(value);
    if (value < 0 || value > INT32_MAX) {
      throw DataError(fmt::format("the token `{}` has the invalid id {}", key_, value), where_);
    }
    vocab->emplace_back(std::move(key_), static_cast<TokenId>(value));
    return true;
  }
  /// "left right", or one of ["left", "right"].
  bool merge_part(std::string& value) {
    if (depth_ > list_depth_) {
      pair_.push_back(std::move(value));
      return true;
    }
    if (value.starts_with("#version")) return true;  // the first line of merges.txt
    const size_t space = value.find(' ');
    if (space == std::string::npos || value.find(' ', space + 1) != std::string::npos)
      return bad_merge();
    merges->emplace_back(value.substr(0, space), value.substr(space + 1));
    return true;
  }
  void end_merge() {
    if (pair_.size() != 2) bad_merge();
    merges->emplace_back(std::move(pair_[0]), std::move(pair_[1]));
    pair_.clear();
  }
  /// ["text", score]
  bool piece_text(std::string& value) {
    if (depth_ != list_depth_ + 1 || !pair_.empty() || score_) return bad_piece();
    pair_.push_back(std::move(value));
    return true;
  }
  bool piece_score(double value) {
    if (pair_.size() != 1 || score_) return bad_piece();
    score_ = value;
    return true;
  }
  void end_piece() {
    if (pair_.size() != 1 || !score_) bad_piece();
    pieces->emplace_back(std::move(pair_[0]), *score_);
    pair_.clear();
    score_.reset();
  }
  [[noreturn]] bool bad_merge() const {
    throw DataError(fmt::format("merge {} is not a pair of tokens", merges->size() + 1), where_);
  }
  [[noreturn]] bool bad_piece() const {
    throw DataError(
        fmt::format("entry {} of `model.vocab` is not a string and a score", pieces->size() + 1),
        where_);
  }
  [[noreturn]] bool misplaced(const char* what) const {
    throw DataError(
        fmt::format("`model.{}` has {}", section_ == Section::kMerges ? "merges" : "vocab", what),
        where_);
  }

  std::string_view text_;
  const std::string& where_;
  Section section_ = Section::kDocument;
  int depth_ = 0, list_depth_ = 0;
  std::string key_, top_key_;
  std::vector<Json*> open_;        ///< the containers around the current position
  std::vector<std::string> pair_;  ///< the parts of a merge or a piece that have been read
  std::optional<double> score_;
};

/// The text; empty if the key is missing or null.
std::string text_or_nothing(const Json& object, const char* key, const std::string& where) {
  const bool is_there = object.contains(key) && !object.at(key).is_null();
  return is_there ? string_at(object, key, where) : "";
}

/// With `dropout` the library drops merges at random, also when encoding.
void refuse_dropout(const Json& model, const std::string& where) {
  if (!model.contains("dropout") || model.at("dropout").is_null() || model.at("dropout") == 0.0)
    return;
  throw DataError(fmt::format("the BPE model's `dropout` is {}, which makes encoding random",
                              excerpt(model.at("dropout").dump())),
                  where, "set model.dropout to null");
}

[[noreturn]] void fail_no_vocab(const char* what, const std::string& where) {
  throw DataError(fmt::format("{} is missing from the tokenizer's model", what), where);
}

BpeSource read_bpe(Reader& reader, const Json& model, const std::string& where) {
  if (!reader.vocab) fail_no_vocab("`model.vocab` (an object)", where);
  if (!reader.merges) fail_no_vocab("`model.merges` (a list)", where);
  refuse_dropout(model, where);
  BpeOptions options;
  options.byte_fallback = bool_at(model, "byte_fallback", false, where);
  options.continuing_subword_prefix = text_or_nothing(model, "continuing_subword_prefix", where);
  options.end_of_word_suffix = text_or_nothing(model, "end_of_word_suffix", where);
  options.unk_token = text_or_nothing(model, "unk_token", where);
  options.fuse_unk = bool_at(model, "fuse_unk", false, where);
  options.ignore_merges = bool_at(model, "ignore_merges", false, where);
  return {std::move(*reader.vocab), std::move(*reader.merges), std::move(options)};
}

UnigramSource read_unigram(Reader& reader, const Json& model, const std::string& where) {
  if (!reader.pieces) fail_no_vocab("`model.vocab` (a list)", where);
  UnigramSource source{std::move(*reader.pieces), std::nullopt,
                       bool_at(model, "byte_fallback", false, where)};
  if (model.contains("unk_id") && !model.at("unk_id").is_null()) {
    const int64_t id = int_at(model, "unk_id", where);
    if (id < 0 || id > INT32_MAX) throw DataError(fmt::format("invalid `unk_id` {}", id), where);
    source.unk_id = static_cast<TokenId>(id);
  }
  return source;
}

WordPieceSource read_word_piece(Reader& reader, const Json& model, const std::string& where) {
  if (!reader.vocab) fail_no_vocab("`model.vocab` (an object)", where);
  const int64_t most = int_at(model, "max_input_chars_per_word", where);
  if (most < 0) throw DataError("`max_input_chars_per_word` is negative", where);
  return {std::move(*reader.vocab), string_at(model, "unk_token", where),
          string_at(model, "continuing_subword_prefix", where), static_cast<size_t>(most)};
}

WordLevelSource read_word_level(Reader& reader, const Json& model, const std::string& where) {
  if (!reader.vocab) fail_no_vocab("`model.vocab` (an object)", where);
  return {std::move(*reader.vocab), string_at(model, "unk_token", where)};
}

/// Old files do not name the type: uses the first type whose fields are present, in the library's
/// order.
std::string model_type(const Reader& reader, const Json& model, const std::string& where) {
  if (model.contains("type")) return string_at(model, "type", where);
  if (reader.merges) return "BPE";
  if (reader.pieces) return "Unigram";
  return model.contains("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

ModelSource read_model(Reader& reader, const Json& model, const std::string& where) {
  const std::string type = model_type(reader, model, where);
  if (type == "BPE") return read_bpe(reader, model, where);
  if (type == "Unigram") return read_unigram(reader, model, where);
  if (type == "WordPiece") return read_word_piece(reader, model, where);
  if (type == "WordLevel") return read_word_level(reader, model, where);
  throw DataError(fmt::format("unknown tokenizer model `{}`", type), where);
}

/// A truncation or padding section, which is only written again: an object, or null.
Json checked_limits(const Json& document, const char* key, const std::string& where) {
  if (!document.contains(key) || document.at(key).is_null()) return Json();
  return object_at(document, key, where);
}

AddedToken read_added_token(const Json& entry, const std::string& where) {
  const int64_t id = int_at(entry, "id", where);
  if (id < 0 || id > INT32_MAX)
    throw DataError(fmt::format("an added token has the invalid id {}", id), where);
  return {.id = static_cast<TokenId>(id),
          .content = string_at(entry, "content", where),
          .single_word = bool_at(entry, "single_word", false, where),
          .lstrip = bool_at(entry, "lstrip", false, where),
          .rstrip = bool_at(entry, "rstrip", false, where),
          .normalized = bool_at(entry, "normalized", true, where),
          .special = bool_at(entry, "special", false, where)};
}

Json section(const Json& document, const char* key) {
  return document.contains(key) ? document.at(key) : Json();
}

}  // namespace

TokenizerSource read_tokenizer_json(std::string_view text, const std::string& where) {
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw DataError(fmt::format("not valid JSON: a NUL byte (byte {})", nul), where);
  Reader reader(text, where);
  Json::sax_parse(text, &reader);
  const Json& document = reader.document;
  if (!document.is_object() || !document.contains("model"))
    throw DataError("not a tokenizer: `model` is missing", where);
  TokenizerSource source;
  source.model = read_model(reader, object_at(document, "model", where), where);
  if (document.contains("added_tokens") && !document.at("added_tokens").is_null()) {
    for (const Json& entry : array_at(document, "added_tokens", where))
      source.added.push_back(read_added_token(entry, where));
  }
  source.normalizer = section(document, "normalizer");
  source.pre_tokenizer = section(document, "pre_tokenizer");
  source.post_processor = section(document, "post_processor");
  source.decoder = section(document, "decoder");
  source.truncation = checked_limits(document, "truncation", where);
  source.padding = checked_limits(document, "padding", where);
  return source;
}

}  // namespace sftrun::tokenizer
