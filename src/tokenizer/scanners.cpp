#include <array>

#include "sftrun/core/utf8.h"
#include "splitters.h"
#include "unicode.h"

/// Scanners for the patterns that nearly every byte-level tokenizer uses, in the order of the
/// pattern's alternatives. Tested against oniguruma with the same pattern.
namespace sftrun::tokenizer {
namespace {

enum class CharKind : uint8_t {
  kOther,
  kLetter,
  kNumber,
  kSpace,
  kNewline
};  ///< kNewline: \r and \n

CharKind kind_of(char32_t c) {
  const PropertyTable& table = PropertyTable::get();
  if (table.is_letter(c)) return CharKind::kLetter;
  if (table.is_number(c)) return CharKind::kNumber;
  if (is_white_space(c)) return c == '\r' || c == '\n' ? CharKind::kNewline : CharKind::kSpace;
  return CharKind::kOther;
}

bool is_space(CharKind kind) {
  return kind >= CharKind::kSpace;
}

class AsciiKinds {
 public:
  AsciiKinds() {
    for (char32_t c = 0; c < 128; ++c) kinds_[c] = kind_of(c);
  }
  CharKind operator[](unsigned char c) const { return kinds_[c]; }

 private:
  std::array<CharKind, 128> kinds_;
};

/// A text with a cursor; `end()` positions have no kind.
class Cursor {
 public:
  Cursor(std::string_view text, const AsciiKinds& ascii) : text_(text), ascii_(ascii) {}

  struct Char {
    CharKind kind;
    uint32_t num_bytes;
  };
  size_t size() const { return text_.size(); }
  char byte(size_t at) const { return text_[at]; }
  Char at(size_t at) const {
    const auto byte = static_cast<unsigned char>(text_[at]);
    if (byte < 128) return {ascii_[byte], 1};
    const DecodedChar c = decode_char(text_.data() + at);
    return {kind_of(c.code), c.num_bytes};
  }
  bool is(size_t at, CharKind kind) const { return at < size() && this->at(at).kind == kind; }
  /// End of the run of `kind` that begins at `at`, at most `limit` characters.
  size_t skip(size_t at, CharKind kind, size_t limit = SIZE_MAX) const {
    for (; limit > 0 && at < size(); --limit) {
      const Char c = this->at(at);
      if (c.kind != kind) break;
      at += c.num_bytes;
    }
    return at;
  }
  std::string_view rest(size_t at) const { return text_.substr(at); }

 private:
  std::string_view text_;
  const AsciiKinds& ascii_;
};

/// Length of the contraction at the front ('s, 't, 're, 've, 'm, 'll, 'd), or 0.
size_t contraction_length(std::string_view text, bool any_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto letter = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? 3 : 0;
    case 'l':
      return letter(2) == 'l' ? 3 : 0;
    default:
      break;
  }
  const bool long_s =
      any_case && text.size() >= 3 && text.substr(1, 2) == "\xC5\xBF";  // ſ folds to s
  return long_s ? 3 : 0;
}

struct SpaceRun {
  size_t end;           ///< end of the white space
  size_t last_begin;    ///< where its last character begins
  size_t newlines_end;  ///< after its last \r or \n; the start of the run if there is none
};

SpaceRun scan_spaces(const Cursor& text, size_t begin) {
  SpaceRun run{begin, begin, begin};
  while (run.end < text.size()) {
    const Cursor::Char c = text.at(run.end);
    if (!is_space(c.kind)) break;
    run.last_begin = run.end;
    run.end += c.num_bytes;
    if (c.kind == CharKind::kNewline) run.newlines_end = run.end;
  }
  return run;
}

/// \s+(?!\S)|\s+
size_t end_of_spaces(const Cursor& text, const SpaceRun& run, size_t begin) {
  return run.end == text.size() || run.last_begin == begin ? run.end : run.last_begin;
}

/// End of the match of GPT-2's pattern that begins at `begin`.
size_t gpt2_match_end(const Cursor& text, size_t begin) {
  if (const size_t length = contraction_length(text.rest(begin), false)) return begin + length;
  const bool after_space = text.byte(begin) == ' ' && begin + 1 < text.size();
  const CharKind kind = text.at(after_space ? begin + 1 : begin).kind;
  if (!is_space(kind)) return text.skip(begin + (after_space ? 1 : 0), kind);
  return end_of_spaces(text, scan_spaces(text, begin), begin);
}

/// End of the match of Llama 3's pattern that begins at `begin`; `max_digits` is 3 for Llama 3 and
/// 1 for Qwen2.
size_t llama3_match_end(const Cursor& text, size_t begin, size_t max_digits) {
  if (const size_t length = contraction_length(text.rest(begin), true)) return begin + length;
  const Cursor::Char first = text.at(begin);
  const size_t second = begin + first.num_bytes;
  if (first.kind == CharKind::kLetter) return text.skip(second, CharKind::kLetter);
  if (first.kind == CharKind::kNumber) return text.skip(begin, CharKind::kNumber, max_digits);
  if (first.kind != CharKind::kNewline && text.is(second, CharKind::kLetter))
    return text.skip(second, CharKind::kLetter);
  const bool after_space = text.byte(begin) == ' ' && text.is(second, CharKind::kOther);
  if (first.kind == CharKind::kOther || after_space) {
    const size_t end = text.skip(after_space ? second : begin, CharKind::kOther);
    return text.skip(end, CharKind::kNewline);
  }
  const SpaceRun run = scan_spaces(text, begin);
  return run.newlines_end != begin ? run.newlines_end : end_of_spaces(text, run, begin);
}

template <class MatchEnd>
class Scanner final : public Splitter {
 public:
  explicit Scanner(MatchEnd match_end) : match_end_(match_end) {}

  void split(std::string_view text, std::vector<Part>& parts) const override {
    parts.clear();
    const Cursor cursor(text, ascii_);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = match_end_(cursor, begin);
      parts.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), true});
      begin = end;
    }
  }

 private:
  MatchEnd match_end_;
  AsciiKinds ascii_;
};

template <class MatchEnd>
std::unique_ptr<Splitter> make_scanner(MatchEnd match_end) {
  return std::make_unique<Scanner<MatchEnd>>(match_end);
}

}  // namespace

std::unique_ptr<Splitter> make_known_scanner(const std::string& pattern) {
  if (pattern == kGpt2Pattern) return make_scanner(gpt2_match_end);
  if (pattern == kLlama3Pattern) {
    return make_scanner(
        [](const Cursor& text, size_t begin) { return llama3_match_end(text, begin, 3); });
  }
  if (pattern == kQwen2Pattern) {
    return make_scanner(
        [](const Cursor& text, size_t begin) { return llama3_match_end(text, begin, 1); });
  }
  return nullptr;
}

}  // namespace sftrun::tokenizer
