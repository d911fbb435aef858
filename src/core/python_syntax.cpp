#include "sftrun/core/python_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"

namespace sftrun {
namespace {

/// The least and the largest number of characters that a part matches.
struct Width {
  uint64_t min = 0, max = 0;
};
constexpr uint64_t kUnbounded = UINT64_C(1) << 32;

Width sum(const Width& a, const Width& b) {
  return {std::min(kUnbounded, a.min + b.min), std::min(kUnbounded, a.max + b.max)};
}
Width product(const Width& width, uint64_t least, uint64_t most) {
  return {std::min(kUnbounded, width.min * least), std::min(kUnbounded, width.max * most)};
}

struct SyntaxProblem {
  std::string text;
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_octal(char c) {
  return c >= '0' && c <= '7';
}
bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 && static_cast<unsigned char>(c) < 0x80;
}

/// Follows the grammar of CPython's re._parser, without building anything.
class SyntaxCheck {
 public:
  explicit SyntaxCheck(std::string_view pattern) : text_(pattern) {}

  void run() {
    if (text_.starts_with("(?")) read_flags_of_all();
    read_alternatives(0);
    if (at_ < text_.size()) fail("unbalanced parenthesis");
  }

 private:
  /// What a repeat may follow.
  enum class Item { kNone, kPlace, kRepeat, kMatching };

  struct Group {
    bool is_open = true;
    Width width;
  };

  [[noreturn]] static void fail(const std::string& text) { throw SyntaxProblem{text}; }

  bool is_at(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  bool take(std::string_view word) {
    if (!is_at(word)) return false;
    at_ += word.size();
    return true;
  }
  char next(const char* otherwise) {
    if (at_ >= text_.size()) fail(otherwise);
    return text_[at_++];
  }

  static void check_flag(char flag) {
    if (std::string_view("imsx").find(flag) == std::string_view::npos)
      fail(fmt::format("the flag {}", flag));
  }

  /// (?i) at the start. `(?i:` is a group.
  void read_flags_of_all() {
    const std::string_view flags = text_.substr(2, text_.find(')') - 2);
    if (flags.empty() || !std::all_of(flags.begin(), flags.end(), is_letter)) return;
    std::for_each(flags.begin(), flags.end(), check_flag);
    is_verbose_ = flags.find('x') != std::string_view::npos;
    at_ = 2 + flags.size();
    close();
  }

  Width read_alternatives(int depth) {
    constexpr int kMaxDepth = 500;
    if (depth > kMaxDepth) fail("its brackets nest too deep");
    Width width = read_sequence(depth);
    while (take("|")) {
      const Width other = read_sequence(depth);
      width = {std::min(width.min, other.min), std::max(width.max, other.max)};
    }
    return width;
  }

  Width read_sequence(int depth) {
    Width all, last;
    Item item = Item::kNone;
    for (skip_blanks(); at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')';
         skip_blanks()) {
      const auto repeat = read_repeat();
      if (!repeat) {
        all = sum(all, last);
        item = read_item(depth, last);
        continue;
      }
      if (item == Item::kNone || item == Item::kPlace) fail("nothing to repeat");
      if (item == Item::kRepeat) fail("multiple repeat");
      last = product(last, repeat->min, repeat->max);
      item = Item::kRepeat;
    }
    return sum(all, last);
  }

  /// Of the flag x.
  void skip_blanks() {
    constexpr std::string_view kBlanks = " \t\n\r\v\f";
    while (is_verbose_ && at_ < text_.size()) {
      if (text_[at_] == '#')
        at_ = std::min(text_.find('\n', at_), text_.size() - 1);
      else if (kBlanks.find(text_[at_]) == std::string_view::npos)
        return;
      ++at_;
    }
  }

  std::string digits() {
    std::string number;
    while (at_ < text_.size() && is_digit(text_[at_])) number += text_[at_++];
    return number;
  }

  static uint64_t count_of(const std::string& number) {
    constexpr size_t kMaxDigits = 6;  // Oniguruma repeats 100,000 times at most
    if (number.size() > kMaxDigits) fail("a repeat of too many times");
    return std::stoull(number);
  }

  /// {2,3}; nullopt: the bracket is a character like others.
  std::optional<Width> read_counts() {
    const size_t begin = at_;
    ++at_;
    const std::string least = digits();
    const bool is_range = take(",");
    const std::string most = is_range ? digits() : least;
    if (!take("}") || (!is_range && least.empty())) {
      at_ = begin;
      return std::nullopt;
    }
    if (least.empty() && most.empty()) fail("the repeat {,}: write *");
    const Width counts{least.empty() ? 0 : count_of(least),
                       most.empty() ? kUnbounded : count_of(most)};
    if (counts.min > counts.max) fail("min repeat greater than max repeat");
    return counts;
  }

  std::optional<Width> read_repeat() {
    std::optional<Width> counts;
    if (is_at("{")) {
      counts = read_counts();
    } else {
      if (take("*"))
        counts = Width{0, kUnbounded};
      else if (take("+"))
        counts = Width{1, kUnbounded};
      else if (take("?"))
        counts = Width{0, 1};
    }
    if (!counts) return std::nullopt;
    if (is_at("+")) fail("possessive repeats (*+, ++, ?+, {2}+)");
    take("?");
    return counts;
  }

  Item read_item(int depth, Width& width) {
    width = {1, 1};
    const char c = text_[at_];
    if (c == '(') {
      ++at_;
      return read_group(depth, width);
    }
    if (c == '[') {
      ++at_;
      read_class();
    } else if (c == '\\') {
      ++at_;
      return read_escape(width);
    } else if (c == '^' || c == '$') {
      ++at_;
      width = {};
      return Item::kPlace;
    } else {
      at_ += decode_char_at(text_, at_).num_bytes;
    }
    return Item::kMatching;
  }

  uint32_t read_hex(size_t num_digits) {
    uint32_t code = 0;
    for (size_t i = 0; i < num_digits; ++i) {
      const char c = next("incomplete escape");
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) fail("incomplete escape");
      code = code * 16 + static_cast<uint32_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return code;
  }

  /// \x41, \u0041, \U00000041. Oniguruma takes \xe9 for a byte.
  uint32_t read_code(char kind) {
    const uint32_t code = read_hex(kind == 'x' ? 2 : kind == 'u' ? 4 : 8);
    constexpr uint32_t kMaxAscii = 0x7f, kLastCode = 0x10ffff;
    const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
    if (is_surrogate || code > kLastCode || (kind == 'x' && code > kMaxAscii))
      fail(fmt::format("the escape \\{}: write the character itself", kind));
    return code;
  }

  /// Octal digits from the first on, which is part of them.
  uint32_t read_octal() {
    uint32_t code = 0;
    for (int i = 0; i < 3 && at_ < text_.size() && is_octal(text_[at_]); ++i)
      code = code * 8 + static_cast<uint32_t>(text_[at_++] - '0');
    if (code > 0x7f) fail("an octal escape: write the character itself");
    return code;
  }

  /// The code of \n, \., \x41 and the like. @param c what follows the backslash, not a digit
  uint32_t read_plain_escape(char c) {
    if (c == 'x' || c == 'u' || c == 'U') return read_code(c);
    constexpr std::string_view kLetters = "afnrtv", kMeant = "\a\f\n\r\t\v";
    if (const size_t at = kLetters.find(c); at != std::string_view::npos)
      return static_cast<uint32_t>(kMeant[at]);
    if (is_letter(c)) fail(fmt::format("bad escape \\{}", c));
    const DecodedChar escaped = decode_char_at(text_, --at_);
    at_ += escaped.num_bytes;
    return escaped.code;
  }

  Item read_escape(Width& width) {
    const char c = next("bad escape (end of pattern)");
    if (std::string_view("AbBZ").find(c) != std::string_view::npos) {
      width = {};
      return Item::kPlace;
    }
    if (std::string_view("dDsSwW").find(c) != std::string_view::npos) return Item::kMatching;
    if (is_digit(c)) {
      --at_;
      width = read_reference();
    } else {
      read_plain_escape(c);
    }
    return Item::kMatching;
  }

  /// \1 and \12 are groups; \0, \07 and \123 characters.
  Width read_reference() {
    const std::string_view rest = text_.substr(at_);
    const bool is_code = rest[0] == '0' ||
                         (rest.size() > 2 && std::all_of(rest.begin(), rest.begin() + 3, is_octal));
    if (is_code) {
      read_octal();
      return {1, 1};
    }
    const size_t length = rest.size() > 1 && is_digit(rest[1]) ? 2 : 1;
    at_ += length;
    return group_width(std::stoul(std::string(rest.substr(0, length))));
  }

  Width group_width(size_t number) const {
    if (number == 0 || number > groups_.size())
      fail(fmt::format("invalid group reference {}", number));
    const Group& group = groups_[number - 1];
    if (group.is_open) fail("cannot refer to an open group");
    if (num_before_lookbehind_ && number > *num_before_lookbehind_)
      fail("cannot refer to group defined in the same lookbehind subpattern");
    return group.width;
  }

  /// A character of a class; nullopt: \d and the like.
  std::optional<uint32_t> read_class_item() {
    if (at_ >= text_.size()) fail("unterminated character set");
    if (is_at("[")) fail("`[` in a class of characters: write \\[");
    if (is_at("&&")) fail("`&&` in a class of characters: write \\&");
    const DecodedChar c = decode_char_at(text_, at_);
    at_ += c.num_bytes;
    if (c.code != '\\') return c.code;
    const char escaped = next("unterminated character set");
    if (std::string_view("dDsSwW").find(escaped) != std::string_view::npos) return std::nullopt;
    if (escaped == 'b') return '\b';
    if (!is_digit(escaped)) return read_plain_escape(escaped);
    if (!is_octal(escaped)) fail(fmt::format("bad escape \\{}", escaped));
    --at_;
    return read_octal();
  }

  void read_class() {
    take("^");
    bool is_first = true;
    while (is_first || !take("]")) {
      is_first = false;
      const auto low = read_class_item();
      if (!is_at("-")) continue;
      ++at_;
      if (is_at("]")) continue;
      const auto high = read_class_item();
      if (!low || !high || *high < *low) fail("bad character range");
    }
  }

  std::string read_name(char end) {
    std::string name;
    for (char c = next("missing group name"); c != end; c = next("unterminated group name"))
      name += c;
    const bool is_name = !name.empty() && !is_digit(name.front()) &&
                         std::all_of(name.begin(), name.end(), [](char c) {
                           return is_letter(c) || is_digit(c) || c == '_';
                         });
    if (!is_name) fail("bad character in group name");
    return name;
  }

  Item read_group(int depth, Width& width) {
    if (!take("?")) return read_capture(depth, width);
    if (take("P")) return read_named(depth, width);
    if (take("#")) {
      while (next("missing ), unterminated comment") != ')') {
      }
      width = {};
      return Item::kNone;
    }
    if (take("<")) {
      if (!take("=") && !take("!")) fail("(?<name>…): write (?P<name>…)");
      return read_lookbehind(depth, width);
    }
    if (take("(")) return read_conditional(depth, width);
    const bool looks_ahead = take("=") || take("!"), was_verbose = is_verbose_;
    if (!looks_ahead && !take(":")) read_flags_of_group();
    width = read_alternatives(depth + 1);
    is_verbose_ = was_verbose;
    close();
    if (looks_ahead) width = {};
    return Item::kMatching;
  }

  void close() {
    if (!take(")")) fail("missing ), unterminated subpattern");
  }

  Item read_capture(int depth, Width& width) {
    const size_t number = groups_.size();
    groups_.emplace_back();
    width = read_alternatives(depth + 1);
    close();
    groups_[number] = {.is_open = false, .width = width};
    return Item::kMatching;
  }

  Item read_named(int depth, Width& width) {
    if (take("<")) {
      if (!names_.emplace(read_name('>'), groups_.size() + 1).second)
        fail("redefinition of a group's name");
      return read_capture(depth, width);
    }
    if (!take("=")) fail("an unknown extension (?P…)");
    const auto group = names_.find(read_name(')'));
    if (group == names_.end()) fail("unknown group name");
    width = group_width(group->second);
    return Item::kMatching;
  }

  /// (?(1)yes|no)
  Item read_conditional(int depth, Width& width) {
    const std::string number = digits();
    if (number.empty() || number.size() > 2 || !take(")"))
      fail("a conditional group (?(…)…): write the number of a group before it");
    group_width(std::stoul(number));
    const Width yes = read_sequence(depth + 1), no = take("|") ? read_sequence(depth + 1) : Width();
    if (is_at("|")) fail("conditional backref with more than two branches");
    close();
    width = {std::min(yes.min, no.min), std::max(yes.max, no.max)};
    return Item::kMatching;
  }

  Item read_lookbehind(int depth, Width& width) {
    const auto before = num_before_lookbehind_;
    if (!before) num_before_lookbehind_ = groups_.size();
    const Width behind = read_alternatives(depth + 1);
    num_before_lookbehind_ = before;
    close();
    if (behind.min != behind.max) fail("look-behind requires fixed-width pattern");
    width = {};
    return Item::kMatching;
  }

  /// i-s of (?i-s:…).
  void read_flags_of_group() {
    std::string on, off;
    std::string* flags = &on;
    for (char c = next("unexpected end of pattern"); c != ':'; c = next("missing -, : or )")) {
      if (c == ')' && off.empty() && !on.empty())
        fail("flags such as (?i) that are not at the start of the expression");
      if (c == '-' && flags == &on) {
        flags = &off;
        continue;
      }
      if (c == '>') fail("atomic groups (?>…)");
      if (!is_letter(c)) fail("an unknown extension (?…)");
      check_flag(c);
      *flags += c;
    }
    if (flags == &off && off.empty()) fail("missing flag");
    if (on.empty() && off.empty()) fail("missing flag");
    if (on.find_first_of(off) != std::string::npos) fail("a flag turned on and off");
    is_verbose_ =
        off.find('x') == std::string::npos && (is_verbose_ || on.find('x') != std::string::npos);
  }

  std::string_view text_;
  size_t at_ = 0;
  bool is_verbose_ = false;  ///< flag x
  std::vector<Group> groups_;
  std::map<std::string, size_t> names_;  ///< of groups, from 1
  std::optional<size_t> num_before_lookbehind_;
};

}  // namespace

std::string python_syntax_problem(std::string_view pattern) {
  try {
    SyntaxCheck(pattern).run();
    return {};
  } catch (const SyntaxProblem& problem) {
    return problem.text;
  }
}

std::string peft_key_pattern(std::string_view key) {
  return fmt::format("(.*\\.)?({})$", key);
}

std::string peft_key_problem(const std::string& key) {
  const std::string problem = regex_problem(key);
  if (!problem.empty()) return problem;
  const std::string within = regex_problem(peft_key_pattern(key));
  return within.empty() ? ""
                        : fmt::format("{}; PEFT reads it within {}", within, peft_key_pattern("…"));
}

}  // namespace sftrun
