#include "sftrun/core/python_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "pattern_characters.h"
#include "pattern_cursor.h"
#include "pattern_groups.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"

namespace sftrun::pattern {
namespace {

void close_group(PatternCursor& text) {
  if (!text.take(")")) fail("missing ), unterminated subpattern");
}

std::string read_name(PatternCursor& text, char end) {
  std::string name;
  for (char c = text.next("missing group name"); c != end; c = text.next("unterminated group name"))
    name += c;
  const bool is_name = !name.empty() && !is_digit(name.front()) &&
                       std::all_of(name.begin(), name.end(),
                                   [](char c) { return is_letter(c) || is_digit(c) || c == '_'; });
  if (!is_name) fail("bad character in group name");
  return name;
}

// ---- Flags

void check_flag(char flag) {
  if (std::string_view("imsx").find(flag) == std::string_view::npos)
    fail(fmt::format("the flag {}", flag));
}

/// (?i) at the start; `(?i:` is a group. Returns whether the flag x is on.
bool read_flags_of_all(PatternCursor& text) {
  std::string_view flags = text.rest();
  if (!flags.starts_with("(?")) return false;
  flags = flags.substr(2, flags.find(')') - 2);
  if (flags.empty() || !std::all_of(flags.begin(), flags.end(), is_letter)) return false;
  std::for_each(flags.begin(), flags.end(), check_flag);
  text.skip(2 + flags.size());
  close_group(text);
  return flags.find('x') != std::string_view::npos;
}

/// i-s of (?i-s:…). Returns whether the flag x is on in the group.
bool read_flags_of_group(PatternCursor& text, bool is_verbose) {
  std::string on, off;
  std::string* flags = &on;
  for (char c = text.next("unexpected end of pattern"); c != ':';
       c = text.next("missing -, : or )")) {
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
  return off.find('x') == std::string::npos && (is_verbose || on.find('x') != std::string::npos);
}

// ---- Repeats

uint64_t repeat_count(const std::string& number) {
  constexpr size_t kMaxDigits = 6;  // Oniguruma repeats 100,000 times at most
  if (number.size() > kMaxDigits) fail("a repeat of too many times");
  return std::stoull(number);
}

/// {2,3}; nullopt: the bracket is a character like others.
std::optional<Width> read_counts(PatternCursor& text) {
  PatternCursor after = text;
  after.take("{");
  const std::string min = after.digits();
  const bool is_range = after.take(",");
  const std::string max = is_range ? after.digits() : min;
  if (!after.take("}") || (!is_range && min.empty())) return std::nullopt;
  text = after;
  if (min.empty() && max.empty()) fail("the repeat {,}: write *");
  const Width counts{min.empty() ? 0 : repeat_count(min),
                     max.empty() ? kUnbounded : repeat_count(max)};
  if (counts.min > counts.max) fail("min repeat greater than max repeat");
  return counts;
}

std::optional<Width> read_repeat(PatternCursor& text) {
  std::optional<Width> counts;
  if (text.is_at("{"))
    counts = read_counts(text);
  else if (text.take("*"))
    counts = Width{0, kUnbounded};
  else if (text.take("+"))
    counts = Width{1, kUnbounded};
  else if (text.take("?"))
    counts = Width{0, 1};
  if (!counts) return std::nullopt;
  if (text.is_at("+")) fail("possessive repeats (*+, ++, ?+, {2}+)");
  text.take("?");
  return counts;
}

/// Follows the grammar of CPython's re._parser, without building anything.
class SyntaxCheck {
 public:
  explicit SyntaxCheck(std::string_view pattern) : text_(pattern) {}

  void run() {
    is_verbose_ = read_flags_of_all(text_);
    read_alternatives(0);
    if (!text_.at_end()) fail("unbalanced parenthesis");
  }

 private:
  /// What a repeat may follow.
  enum class Item { kNone, kPlace, kRepeat, kMatching };

  Width read_alternatives(int depth) {
    constexpr int kMaxDepth = 500;
    if (depth > kMaxDepth) fail("its brackets nest too deep");
    Width width = read_sequence(depth);
    while (text_.take("|")) {
      const Width other = read_sequence(depth);
      width = {std::min(width.min, other.min), std::max(width.max, other.max)};
    }
    return width;
  }

  Width read_sequence(int depth) {
    Width all, last;
    Item item = Item::kNone;
    for (skip_blanks(); !text_.at_end() && !text_.is_at("|") && !text_.is_at(")"); skip_blanks()) {
      const auto repeat = read_repeat(text_);
      if (!repeat) {
        all = sum(all, last);
        item = read_item(depth, last);
        continue;
      }
      if (item == Item::kNone || item == Item::kPlace) fail("nothing to repeat");
      if (item == Item::kRepeat) fail("multiple repeat");
      last = product(last, *repeat);
      item = Item::kRepeat;
    }
    return sum(all, last);
  }

  /// Of the flag x.
  void skip_blanks() {
    constexpr std::string_view kBlanks = " \t\n\r\v\f";
    while (is_verbose_ && !text_.at_end()) {
      if (text_.is_at("#"))
        text_.skip(std::min(text_.rest().find('\n'), text_.rest().size() - 1));
      else if (kBlanks.find(text_.rest().front()) == std::string_view::npos)
        return;
      text_.skip(1);
    }
  }

  Item read_item(int depth, Width& width) {
    width = {1, 1};
    if (text_.take("(")) return read_group(depth, width);
    if (text_.take("\\")) return read_escape(width);
    if (text_.take("^") || text_.take("$")) {
      width = {};
      return Item::kPlace;
    }
    if (text_.take("["))
      read_class(text_);
    else
      text_.next_char();
    return Item::kMatching;
  }

  Item read_escape(Width& width) {
    const char c = text_.next("bad escape (end of pattern)");
    if (std::string_view("AbBZ").find(c) != std::string_view::npos) {
      width = {};
      return Item::kPlace;
    }
    if (std::string_view("dDsSwW").find(c) != std::string_view::npos) return Item::kMatching;
    if (is_digit(c)) {
      text_.step_back();
      width = read_reference();
    } else {
      read_plain_escape(text_, c);
    }
    return Item::kMatching;
  }

  /// \1 and \12 are groups; \0, \07 and \123 characters.
  Width read_reference() {
    const std::string_view rest = text_.rest();
    const bool is_code = rest[0] == '0' ||
                         (rest.size() > 2 && std::all_of(rest.begin(), rest.begin() + 3, is_octal));
    if (is_code) {
      read_octal(text_);
      return {1, 1};
    }
    const size_t length = rest.size() > 1 && is_digit(rest[1]) ? 2 : 1;
    text_.skip(length);
    return groups_.width_of(std::stoul(std::string(rest.substr(0, length))));
  }

  Item read_group(int depth, Width& width) {
    if (!text_.take("?")) return read_capture(depth, width);
    if (text_.take("P")) return read_named(depth, width);
    if (text_.take("#")) {
      while (text_.next("missing ), unterminated comment") != ')') {
      }
      width = {};
      return Item::kNone;
    }
    if (text_.take("<")) {
      if (!text_.take("=") && !text_.take("!")) fail("(?<name>…): write (?P<name>…)");
      return read_lookbehind(depth, width);
    }
    if (text_.take("(")) return read_conditional(depth, width);
    const bool looks_ahead = text_.take("=") || text_.take("!"), was_verbose = is_verbose_;
    if (!looks_ahead && !text_.take(":")) is_verbose_ = read_flags_of_group(text_, is_verbose_);
    width = read_alternatives(depth + 1);
    is_verbose_ = was_verbose;
    close_group(text_);
    if (looks_ahead) width = {};
    return Item::kMatching;
  }

  Item read_capture(int depth, Width& width) {
    const size_t number = groups_.open();
    width = read_alternatives(depth + 1);
    close_group(text_);
    groups_.close(number, width);
    return Item::kMatching;
  }

  Item read_named(int depth, Width& width) {
    if (text_.take("<")) {
      groups_.name_next(read_name(text_, '>'));
      return read_capture(depth, width);
    }
    if (!text_.take("=")) fail("an unknown extension (?P…)");
    width = groups_.width_of(read_name(text_, ')'));
    return Item::kMatching;
  }

  /// (?(1)yes|no)
  Item read_conditional(int depth, Width& width) {
    const std::string number = text_.digits();
    if (number.empty() || number.size() > 2 || !text_.take(")"))
      fail("a conditional group (?(…)…): write the number of a group before it");
    groups_.width_of(std::stoul(number));
    const Width yes = read_sequence(depth + 1);
    const Width no = text_.take("|") ? read_sequence(depth + 1) : Width();
    if (text_.is_at("|")) fail("conditional backref with more than two branches");
    close_group(text_);
    width = {std::min(yes.min, no.min), std::max(yes.max, no.max)};
    return Item::kMatching;
  }

  Item read_lookbehind(int depth, Width& width) {
    const auto before = groups_.enter_lookbehind();
    const Width behind = read_alternatives(depth + 1);
    groups_.leave_lookbehind(before);
    close_group(text_);
    if (behind.min != behind.max) fail("look-behind requires fixed-width pattern");
    width = {};
    return Item::kMatching;
  }

  PatternCursor text_;
  PatternGroups groups_;
  bool is_verbose_ = false;  ///< flag x
};

}  // namespace

}  // namespace sftrun::pattern

namespace sftrun {

std::string python_syntax_problem(std::string_view pattern) {
  try {
    pattern::SyntaxCheck(pattern).run();
    return {};
  } catch (const pattern::SyntaxProblem& problem) {
    return problem.text;
  }
}

std::string peft_key_pattern(std::string_view key) {
  return fmt::format("(.*\\.)?({})$", key);
}

std::string peft_key_problem(const std::string& key) {
  std::string problem = regex_problem(key);
  if (!problem.empty()) return problem;
  const std::string within = regex_problem(peft_key_pattern(key));
  return within.empty() ? ""
                        : fmt::format("{}; PEFT reads it within {}", within, peft_key_pattern("…"));
}

}  // namespace sftrun
