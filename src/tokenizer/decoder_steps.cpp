#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "byte_level.h"
#include "decoder.h"
#include "json_access.h"
#include "onig_regex.h"
#include "pre_tokenizer.h"
#include "sftrun/core/error.h"
#include "sftrun/core/utf8.h"
#include "unicode.h"

/// Each decoder of the library (tokenizers, src/decoders).
namespace sftrun::tokenizer {
namespace {

std::string replaced(std::string_view text, std::string_view pattern, std::string_view content) {
  if (pattern.empty()) return std::string(text);
  std::string result;
  size_t from = 0;
  for (size_t at = text.find(pattern); at != std::string_view::npos;
       at = text.find(pattern, from)) {
    result.append(text.substr(from, at - from)).append(content);
    from = at + pattern.size();
  }
  return result.append(text.substr(from));
}

/// A step that sees one token at a time.
class TokenStep : public DecoderStep {
 public:
  void run(std::vector<std::string>& tokens) const final {
    for (std::string& token : tokens) token = bytes_of(std::move(token));
  }
};

class ByteLevel final : public DecoderStep {
 public:
  void run(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (std::string& token : tokens) bytes += bytes_of(std::move(token));
    tokens.assign(1, utf8_lossy(bytes));
  }
  std::string bytes_of(std::string token) const override {
    auto bytes = visible_to_bytes(token);
    return bytes ? std::move(*bytes) : std::move(token);
  }
};

class ReplaceLiteralInToken final : public TokenStep {
 public:
  ReplaceLiteralInToken(std::string literal, std::string content)
      : literal_(std::move(literal)), content_(std::move(content)) {}
  std::string bytes_of(std::string token) const override {
    return replaced(token, literal_, content_);
  }

 private:
  std::string literal_, content_;
};

class ReplacePatternInToken final : public TokenStep {
 public:
  ReplacePatternInToken(const std::string& pattern, std::string content, const std::string& where)
      : pattern_(pattern, where), content_(std::move(content)) {}
  std::string bytes_of(std::string token) const override {
    if (token.empty()) return token;
    std::vector<ByteSpan> matches;
    pattern_.find_all(token, matches);
    std::string out;
    size_t from = 0;
    for (const ByteSpan& match : matches) {
      out.append(token, from, match.begin - from).append(content_);
      from = match.end;
    }
    return out.append(token, from);
  }

 private:
  Regex pattern_;
  std::string content_;
};

/// <0x0A> is the byte of that value; consecutive bytes become text, or one replacement character
/// each if they are not UTF-8.
class ByteFallback final : public DecoderStep {
 public:
  void run(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (find_invalid_utf8(bytes) != std::string_view::npos) {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      } else if (!bytes.empty()) {
        out.push_back(bytes);
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = byte_of(token)) {
        bytes += *byte;
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    tokens = std::move(out);
  }
  std::string bytes_of(std::string token) const override {
    const auto byte = byte_of(token);
    return byte ? std::string(1, *byte) : token;
  }

 private:
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    // Rust's number parser accepts a plus sign.
    const char* const begin = token.data() + (token[3] == '+' ? 4 : 3);
    uint8_t value = 0;
    const auto [end, code] = std::from_chars(begin, token.data() + 5, value, 16);
    if (code != std::errc() || end != token.data() + 5) return std::nullopt;
    return static_cast<char>(value);
  }
};

class Fuse final : public DecoderStep {
 public:
  void run(std::vector<std::string>& tokens) const override {
    std::string whole;
    for (const std::string& token : tokens) whole += token;
    tokens.assign(1, whole);
  }
  std::string bytes_of(std::string token) const override { return token; }
};

/// Removes a character at the ends of each token, up to a given number of times. The result for a
/// single token is unknown, because after Fuse the whole text is one token.
class StripDecoder final : public DecoderStep {
 public:
  StripDecoder(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void run(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (int64_t i = 0; i < start_ && rest.starts_with(content_); ++i)
        rest.remove_prefix(content_.size());
      for (int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i)
        rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }
  std::string bytes_of(std::string token) const override { return token; }

 private:
  std::string content_;
  int64_t start_, stop_;
};

class MetaspaceDecoder final : public DecoderStep {
 public:
  MetaspaceDecoder(std::string replacement, bool prepends)
      : replacement_(std::move(replacement)), prepends_(prepends) {}
  void run(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = replaced(tokens[i], replacement_, i == 0 && prepends_ ? "" : " ");
  }
  std::string bytes_of(std::string token) const override {
    return replaced(token, replacement_, " ");
  }

 private:
  std::string replacement_;
  bool prepends_;
};

/// The library's cleanup: removes spaces before punctuation and contractions.
std::string cleaned_up(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& [from, to] : kRules) text = replaced(text, from, to);
  return text;
}

class WordPieceDecoder final : public DecoderStep {
 public:
  WordPieceDecoder(std::string prefix, bool cleans) : prefix_(std::move(prefix)), cleans_(cleans) {}
  void run(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) {
        tokens[i] = bytes_of(std::move(tokens[i]));
      } else if (cleans_) {
        tokens[i] = cleaned_up(std::move(tokens[i]));
      }
    }
  }
  std::string bytes_of(std::string token) const override {
    std::string out = token.starts_with(prefix_) ? token.substr(prefix_.size()) : ' ' + token;
    return cleans_ ? cleaned_up(std::move(out)) : out;
  }

 private:
  std::string prefix_;
  bool cleans_;
};

/// For models with a suffix at the end of words.
class BpeSuffix final : public DecoderStep {
 public:
  explicit BpeSuffix(std::string suffix) : suffix_(std::move(suffix)) {}
  void run(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = with_suffix_as(tokens[i], i + 1 == tokens.size() ? "" : " ");
  }
  std::string bytes_of(std::string token) const override { return with_suffix_as(token, " "); }

 private:
  std::string with_suffix_as(const std::string& token, std::string_view content) const {
    if (!suffix_.empty()) return replaced(token, suffix_, content);
    // Rust finds an empty pattern before each character and at the end.
    std::string out(content);
    for (size_t i = 0; i < token.size();) {
      const size_t length = decode_char(token.data() + i).num_bytes;
      out.append(token, i, length).append(content);
      i += length;
    }
    return out;
  }
  std::string suffix_;
};

class Ctc final : public DecoderStep {
 public:
  Ctc(std::string pad, std::string delimiter, bool cleans)
      : pad_(std::move(pad)), delimiter_(std::move(delimiter)), cleans_(cleans) {}
  void run(std::vector<std::string>& tokens) const override {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (std::string& token : tokens) token = bytes_of(std::move(token));
    std::erase_if(tokens, [](const std::string& token) { return token.empty(); });
  }
  std::string bytes_of(std::string token) const override {
    std::string out = replaced(token, pad_, "");
    return cleans_ ? replaced(cleaned_up(std::move(out)), delimiter_, " ") : out;
  }

 private:
  std::string pad_, delimiter_;
  bool cleans_;
};

std::unique_ptr<DecoderStep> make_strip(const Json& step, const std::string& where) {
  std::string content = string_at(step, "content", where);
  const int64_t start = int_at(step, "start", where), stop = int_at(step, "stop", where);
  if (content.empty()) throw DataError("`content` of the decoder Strip is empty", where);
  return std::make_unique<StripDecoder>(std::move(content), start, stop);
}

std::unique_ptr<DecoderStep> make_metaspace(const Json& step, const std::string& where) {
  std::string replacement = string_at(step, "replacement", where);
  return std::make_unique<MetaspaceDecoder>(std::move(replacement),
                                            prepend_scheme_of(step, where) != "never");
}

}  // namespace

std::unique_ptr<DecoderStep> make_decoder_step(const Json& section, const std::string& where) {
  const std::string type = string_at(section, "type", where);
  if (type == "ByteLevel") return std::make_unique<ByteLevel>();
  if (type == "Replace")
    return make_replace_step<DecoderStep, ReplaceLiteralInToken, ReplacePatternInToken>(section,
                                                                                        where);
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Strip") return make_strip(section, where);
  if (type == "Metaspace") return make_metaspace(section, where);
  if (type == "WordPiece") {
    return std::make_unique<WordPieceDecoder>(string_at(section, "prefix", where),
                                              bool_at(section, "cleanup", true, where));
  }
  if (type == "BPEDecoder") return std::make_unique<BpeSuffix>(string_at(section, "suffix", where));
  if (type == "CTC") {
    return std::make_unique<Ctc>(string_at(section, "pad_token", where),
                                 string_at(section, "word_delimiter_token", where),
                                 bool_at(section, "cleanup", true, where));
  }
  throw DataError(fmt::format("unknown decoder `{}`", type), where);
}

}  // namespace sftrun::tokenizer
