#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "json_access.h"
#include "pre_tokenizer.h"
#include "sftrun/core/error.h"
#include "tokenizer_source.h"

namespace sftrun::text {
namespace {

/// Reads a tokenizer.json in one pass: vocabulary and merges (megabytes) go straight to their
/// tables, everything else (kilobytes) into a document.
class Reader final : public nlohmann::json_sax<Json> {
 public:
  Reader(BpeSource& bpe, std::string_view text, const std::string& where)
      : bpe_(bpe), text_(text), where_(where) {}

  Json document;
  bool has_vocab = false, has_merges = false;

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    return number(static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX)));
  }
  bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
  bool binary(binary_t&) override { return false; }

  bool string(string_t& value) override {
    if (section_ == Section::kMerges) return merge_part(value);
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
      has_vocab = true;
      return true;
    }
    open_.push_back(&put(Json::object()));
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
    if (section_ == Section::kMerges) return true;
    if (in_model() && key_ == "merges") {
      section_ = Section::kMerges;
      merges_depth_ = depth_;
      has_merges = true;
      return true;
    }
    open_.push_back(&put(Json::array()));
    return true;
  }
  bool end_array() override {
    if (section_ != Section::kMerges) {
      open_.pop_back();
    } else if (depth_ == merges_depth_) {
      section_ = Section::kDocument;
    } else {
      if (pair_.size() != 2) return bad_merge();
      bpe_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      pair_.clear();
    }
    --depth_;
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const std::string_view before = text_.substr(0, std::min(position, text_.size()));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    throw DataError(fmt::format("not valid JSON: {}", error.what()),
                    fmt::format("{}:{}", where_, line));
  }

 private:
  enum class Section : uint8_t { kDocument, kVocab, kMerges };

  /// The value about to start is a field of `model` (depth counts the value itself).
  bool in_model() const { return depth_ == 3 && top_key_ == "model" && open_.size() == 2; }

  Json& put(Json value) {
    if (open_.empty()) return document = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_array()) return parent.emplace_back(std::move(value));
    return parent[key_] = std::move(value);
  }
  template <class T>
  bool scalar(T&& value) {
    if (section_ == Section::kVocab) return misplaced("a value that is no integer");
    if (section_ == Section::kMerges) return bad_merge();
    put(Json(std::forward<T>(value)));
    return true;
  }
  bool number(int64_t value) {
    if (section_ != Section::kVocab) return scalar(value);
    if (value < 0 || value > INT32_MAX) {
      throw DataError(fmt::format("the token `{}` has the impossible id {}", key_, value), where_);
    }
    bpe_.vocab.emplace_back(std::move(key_), static_cast<TokenId>(value));
    return true;
  }
  /// "left right", or one of ["left", "right"].
  bool merge_part(std::string& value) {
    if (depth_ > merges_depth_) {
      pair_.push_back(std::move(value));
      return true;
    }
    const size_t space = value.find(' ');
    if (space == std::string::npos || value.find(' ', space + 1) != std::string::npos)
      return bad_merge();
    bpe_.merges.emplace_back(value.substr(0, space), value.substr(space + 1));
    return true;
  }
  [[noreturn]] bool bad_merge() const {
    throw DataError(fmt::format("merge {} is not a pair of tokens", bpe_.merges.size() + 1),
                    where_);
  }
  [[noreturn]] bool misplaced(const char* what) const {
    throw DataError(
        fmt::format("`model.{}` holds {}", section_ == Section::kVocab ? "vocab" : "merges", what),
        where_);
  }

  BpeSource& bpe_;
  std::string_view text_;
  const std::string& where_;
  Section section_ = Section::kDocument;
  int depth_ = 0, merges_depth_ = 0;
  std::string key_, top_key_;
  std::vector<Json*> open_;  ///< containers on the way to the current place
  std::vector<std::string> pair_;
};

void require_empty(const Json& model, const char* key, const std::string& where) {
  if (!model.contains(key) || model.at(key).is_null()) return;
  const Json& value = model.at(key);
  if (value == "" || value == 0.0 || value == false) return;
  throw DataError(
      fmt::format("a BPE model with `{}` set to {} is not supported", key, value.dump()), where);
}

BpeOptions read_options(const Json& model, const std::string& where) {
  if (const std::string type = model.contains("type") ? string_at(model, "type", where) : "BPE";
      type != "BPE") {
    throw DataError(fmt::format("the tokenizer model `{}` is not supported", type), where,
                    "use a model with a BPE tokenizer");
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    require_empty(model, key, where);
  const bool has_unk = model.contains("unk_token") && !model.at("unk_token").is_null();
  return {.byte_fallback = bool_at(model, "byte_fallback", false, where),
          .unk_token = has_unk ? string_at(model, "unk_token", where) : "",
          .fuse_unk = bool_at(model, "fuse_unk", false, where),
          .ignore_merges = bool_at(model, "ignore_merges", false, where)};
}

AddedToken read_added_token(const Json& entry, const std::string& where) {
  const int64_t id = int_at(entry, "id", where);
  if (id < 0 || id > INT32_MAX)
    throw DataError(fmt::format("an added token has the impossible id {}", id), where);
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
  TokenizerSource source;
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw DataError(fmt::format("not valid JSON: a NUL byte (byte {})", nul), where);
  Reader reader(source.bpe, text, where);
  Json::sax_parse(text, &reader);
  const Json& document = reader.document;
  if (!document.is_object() || !document.contains("model"))
    throw DataError("no tokenizer: `model` is missing", where);
  const Json& model = object_at(document, "model", where);
  source.bpe.options = read_options(model, where);
  if (!reader.has_vocab || !reader.has_merges) {
    throw DataError("`model.vocab` (an object) or `model.merges` (a list) is missing", where);
  }
  if (document.contains("added_tokens") && !document.at("added_tokens").is_null()) {
    for (const Json& entry : array_at(document, "added_tokens", where))
      source.added.push_back(read_added_token(entry, where));
  }
  source.normalizer = section(document, "normalizer");
  source.pre_tokenizer = section(document, "pre_tokenizer");
  source.post_processor = section(document, "post_processor");
  source.decoder = section(document, "decoder");
  source.bpe.options.characters = !has_byte_level(source.pre_tokenizer);
  return source;
}

}  // namespace sftrun::text
