#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "byte_level.h"
#include "charsmap.h"
#include "json_access.h"
#include "normalizer.h"
#include "onig_regex.h"
#include "sftrun/core/base64.h"
#include "sftrun/core/error.h"
#include "sftrun/core/utf8.h"
#include "text_edit.h"
#include "unicode.h"

/// Each normalizer of the library (tokenizers, src/normalizers).
namespace sftrun::tokenizer {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

/// Calls `change(edit, c, begin, end)` for each character; it writes the replacement.
template <class Change>
NormalizedText change_chars(std::string_view text, bool with_sources, Change&& change) {
  TextEdit edit(text, with_sources);
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    const DecodedChar c = decode_char(text.data() + begin);
    end = begin + c.num_bytes;
    change(edit, c.code, begin, end);
  }
  return edit.take();
}

class UnicodeForm final : public NormalizerStep {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  bool surely_keeps(std::string_view text) const override { return is_surely(form_, text); }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    return normalize(form_, text, with_sources);
  }

 private:
  NormalForm form_;
};

class Prepend final : public NormalizerStep {
 public:
  explicit Prepend(std::string content) : content_(std::move(content)) {}
  bool surely_keeps(std::string_view) const override { return content_.empty(); }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    TextEdit edit(text, with_sources);
    edit.write(content_, 0, 0);
    edit.keep(0, text.size());
    return edit.take();
  }

 private:
  std::string content_;
};

class LiteralReplacer final : public NormalizerStep {
 public:
  LiteralReplacer(std::string literal, std::string content)
      : literal_(std::move(literal)), content_(std::move(content)) {}
  bool surely_keeps(std::string_view text) const override {
    return text.find(literal_) == std::string_view::npos;
  }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    TextEdit edit(text, with_sources);
    size_t from = 0;
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, from)) {
      edit.keep(from, at);
      from = at + literal_.size();
      edit.write(content_, at, from);
    }
    edit.keep(from, text.size());
    return edit.take();
  }

 private:
  std::string literal_, content_;
};

class PatternReplacer final : public NormalizerStep {
 public:
  PatternReplacer(const std::string& pattern, std::string content, const std::string& where)
      : pattern_(pattern, where), content_(std::move(content)) {}
  bool surely_keeps(std::string_view text) const override {
    // The pattern of every converted SentencePiece model.
    if (pattern_.pattern() == " {2,}") return text.find("  ") == std::string_view::npos;
    return false;
  }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    std::vector<ByteSpan> matches;
    pattern_.find_all(text, matches);
    TextEdit edit(text, with_sources);
    size_t from = 0;
    for (const ByteSpan& match : matches) {
      edit.keep(from, match.begin);
      edit.write(content_, match.begin, match.end);
      from = match.end;
    }
    edit.keep(from, text.size());
    return edit.take();
  }

 private:
  Regex pattern_;
  std::string content_;
};

class StripNormalizer final : public NormalizerStep {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  bool surely_keeps(std::string_view text) const override {
    return !(left_ && is_white_space(decode_char(text.data()).code)) &&
           !(right_ && is_white_space(decode_last_char(text).code));
  }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    size_t begin = 0, end = text.size();
    while (left_ && begin < end) {
      const DecodedChar c = decode_char(text.data() + begin);
      if (!is_white_space(c.code)) break;
      begin += c.num_bytes;
    }
    while (right_ && begin < end) {
      const DecodedChar c = decode_last_char(text.substr(0, end));
      if (!is_white_space(c.code)) break;
      end -= c.num_bytes;
    }
    TextEdit edit(text, with_sources);
    edit.keep(begin, end);
    return edit.take();
  }

 private:
  bool left_, right_;
};

class StripAccents final : public NormalizerStep {
 public:
  bool surely_keeps(std::string_view text) const override { return is_ascii(text); }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    return change_chars(text, with_sources,
                        [](TextEdit& edit, char32_t c, size_t begin, size_t end) {
                          if (!PropertyTable::get().is_accent(c)) edit.keep(begin, end);
                        });
  }
};

void write_lower(TextEdit& edit, char32_t c, size_t begin, size_t end) {
  append_lower(edit.text(), c);
  edit.mark(begin, end);
}

class Lowercase final : public NormalizerStep {
 public:
  bool surely_keeps(std::string_view text) const override {
    return is_ascii(text) &&
           std::none_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    return change_chars(text, with_sources, write_lower);
  }
};

/// NMT's preprocessing: removes control characters and replaces unusual spaces by spaces.
class Nmt final : public NormalizerStep {
 public:
  bool surely_keeps(std::string_view text) const override {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7F; });
  }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    return change_chars(text, with_sources,
                        [](TextEdit& edit, char32_t c, size_t begin, size_t end) {
                          if (is_removed(c)) return;
                          is_space(c) ? edit.write(" ", begin, end) : edit.keep(begin, end);
                        });
  }

 private:
  static bool is_removed(char32_t c) {
    return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
           c == 0x9F;
  }
  static bool is_space(char32_t c) {
    return c == '\t' || c == '\n' || c == '\f' || c == '\r' || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
  }
};

class Precompiled final : public NormalizerStep {
 public:
  Precompiled(std::string_view charsmap, const std::string& where) : charsmap_(charsmap, where) {}
  bool surely_keeps(std::string_view text) const override { return charsmap_.surely_keeps(text); }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    return charsmap_.run(text, with_sources);
  }

 private:
  Charsmap charsmap_;
};

/// Replaces every byte by its visible character in GPT-2's encoding.
class ByteLevelNormalizer final : public NormalizerStep {
 public:
  bool surely_keeps(std::string_view text) const override {
    return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7F; });
  }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    return bytes_to_visible(text, with_sources);
  }
};

/// The first half of BERT's normalizer: cleans the text and puts spaces around Chinese characters.
class BertText final : public NormalizerStep {
 public:
  BertText(bool cleans, bool parts_chinese) : cleans_(cleans), parts_chinese_(parts_chinese) {}
  bool surely_keeps(std::string_view text) const override {
    if (!cleans_ && !parts_chinese_) return true;
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7F; });
  }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    return change_chars(
        text, with_sources, [this](TextEdit& edit, char32_t c, size_t begin, size_t end) {
          if (cleans_ && is_removed(c)) return;
          const bool is_chinese = parts_chinese_ && is_chinese_char(c);
          if (is_chinese) edit.write(" ", begin, end);
          cleans_&& is_white_space(c) ? edit.write(" ", begin, end) : edit.keep(begin, end);
          if (is_chinese) edit.write(" ", begin, end);
        });
  }

 private:
  static bool is_removed(char32_t c) {
    if (c == 0 || c == 0xFFFD) return true;
    return c != '\t' && c != '\n' && c != '\r' && PropertyTable::get().is_bert_control(c);
  }
  static bool is_chinese_char(char32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
  }
  bool cleans_, parts_chinese_;
};

/// The second half: removes accents and lowercases.
class BertCase final : public NormalizerStep {
 public:
  BertCase(bool strips_accents, bool lowers) : strips_accents_(strips_accents), lowers_(lowers) {}
  bool surely_keeps(std::string_view text) const override {
    return is_ascii(text) && (!lowers_ || lowercase_.surely_keeps(text));
  }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    NormalizedText out;
    if (strips_accents_) {
      const NormalizedText apart = normalize(NormalForm::kNfd, text, with_sources);
      out = change_chars(apart.text, with_sources,
                         [](TextEdit& edit, char32_t c, size_t begin, size_t end) {
                           if (!PropertyTable::get().is_bert_accent(c)) edit.keep(begin, end);
                         });
      if (with_sources) out.sources = through(apart.sources, out.sources);
    } else {
      TextEdit edit(text, with_sources);
      edit.keep(0, text.size());
      out = edit.take();
    }
    if (!lowers_) return out;
    NormalizedText lower = lowercase_.run(out.text, with_sources);
    if (with_sources) lower.sources = through(out.sources, lower.sources);
    return lower;
  }

 private:
  bool strips_accents_, lowers_;
  Lowercase lowercase_;
};

/// BERT's normalizer as its two halves.
class Bert final : public NormalizerStep {
 public:
  Bert(const Json& section, const std::string& where)
      : text_(bool_at(section, "clean_text", true, where),
              bool_at(section, "handle_chinese_chars", true, where)),
        case_(bool_at(section, "strip_accents", bool_at(section, "lowercase", true, where), where),
              bool_at(section, "lowercase", true, where)) {}
  bool surely_keeps(std::string_view text) const override {
    return text_.surely_keeps(text) && case_.surely_keeps(text);
  }
  NormalizedText run(std::string_view text, bool with_sources) const override {
    const NormalizedText cleaned = text_.run(text, with_sources);
    NormalizedText out = case_.run(cleaned.text, with_sources);
    if (with_sources) out.sources = through(cleaned.sources, out.sources);
    return out;
  }

 private:
  BertText text_;
  BertCase case_;
};

std::unique_ptr<NormalizerStep> make_precompiled(const Json& section, const std::string& where) {
  const auto charsmap = decode_base64(string_at(section, "precompiled_charsmap", where));
  if (!charsmap) throw DataError("`precompiled_charsmap` is not base64", where);
  return std::make_unique<Precompiled>(*charsmap, where);
}

}  // namespace

std::unique_ptr<NormalizerStep> make_normalizer_step(const Json& section,
                                                     const std::string& where) {
  const std::string type = string_at(section, "type", where);
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kNfkd);
  if (type == "Prepend") return std::make_unique<Prepend>(string_at(section, "prepend", where));
  if (type == "Replace")
    return make_replace_step<NormalizerStep, LiteralReplacer, PatternReplacer>(section, where);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "BertNormalizer") return std::make_unique<Bert>(section, where);
  if (type == "Precompiled") return make_precompiled(section, where);
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Strip") {
    return std::make_unique<StripNormalizer>(bool_at(section, "strip_left", true, where),
                                             bool_at(section, "strip_right", true, where));
  }
  throw DataError(fmt::format("unknown normalizer `{}`", type), where);
}

}  // namespace sftrun::tokenizer
