#include <fmt/format.h>

#include <array>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

#include "onig_regex.h"
#include "unicode.h"

namespace sftrun::tokenizer {
namespace {

constexpr std::array kCategoryNames = {"cn", "lu", "ll", "lt", "lm", "lo", "mn", "mc", "me", "nd",
                                       "nl", "no", "pc", "pd", "ps", "pe", "pi", "pf", "po", "sm",
                                       "sc", "sk", "so", "zs", "zl", "zp", "cc", "cf", "co", "cs"};
/// Surrogates never occur in UTF-8.
constexpr uint32_t kSurrogates = 0xD800, kAfterSurrogates = 0xE000, kEnd = 0x110000;

/// Property names compare without case, spaces, hyphens and underscores.
std::string plain_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != ' ' && c != '-' && c != '_')
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }
  return out;
}

std::string long_name_to_short(const std::string& name) {
  if (name == "letter") return "l";
  if (name == "mark") return "m";
  if (name == "number") return "n";
  if (name == "punctuation" || name == "punct") return "p";
  if (name == "symbol") return "s";
  if (name == "separator") return "z";
  return name;
}

template <class Predicate>
std::string ranges_where(bool negated, Predicate&& has) {
  std::string out;
  uint32_t begin = kEnd;  // of the open range
  const auto close = [&](uint32_t end) {
    if (begin == kEnd) return;
    out += begin + 1 == end ? fmt::format("\\x{{{:x}}}", begin)
                            : fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", begin, end - 1);
    begin = kEnd;
  };
  for (uint32_t c = 0; c < kEnd; ++c) {
    if (c == kSurrogates) {
      close(c);
      c = kAfterSurrogates;
    }
    if (has(static_cast<char32_t>(c)) == negated) {
      close(c);
    } else if (begin == kEnd) {
      begin = c;
    }
  }
  close(kEnd);
  return out;
}

/// The ranges of a property as written inside brackets; nullopt if the tables lack it.
std::optional<std::string> property_ranges(std::string_view name, bool negated) {
  const PropertyTable& table = PropertyTable::get();
  const std::string key = long_name_to_short(plain_name(name));
  if (key == "han") {
    size_t num_ranges = 0;
    const CodePointRange* han = han_ranges(num_ranges);
    return ranges_where(negated, [&, at = size_t{0}](char32_t c) mutable {
      while (at < num_ranges && han[at].last < c) ++at;
      return at < num_ranges && c >= han[at].first;
    });
  }
  if (key.empty() || key.size() > 2) return std::nullopt;
  bool known = false;
  std::array<bool, kCategoryNames.size()> chosen{};
  for (size_t i = 0; i < kCategoryNames.size(); ++i) {
    chosen[i] = key == (key.size() == 1 ? std::string(1, kCategoryNames[i][0]) : kCategoryNames[i]);
    known = known || chosen[i];
  }
  if (!known) return std::nullopt;
  return ranges_where(negated,
                      [&](char32_t c) { return chosen[static_cast<size_t>(table.category(c))]; });
}

/// \w, \d and their negations.
std::string shorthand_ranges(char letter) {
  const PropertyTable& table = PropertyTable::get();
  const bool negated = letter == 'W' || letter == 'D';
  if (letter == 'w' || letter == 'W') {
    return ranges_where(negated, [&](char32_t c) { return table.is_onig_word(c); });
  }
  return ranges_where(negated, [&](char32_t c) { return table.category(c) == Category::kNd; });
}

/// Cached, because each property needs a pass over all code points, and patterns repeat a few of
/// them.
template <class Make>
std::optional<std::string> remembered(const std::string& name, Make&& make) {
  static std::mutex mutex;
  static std::map<std::string, std::string> known;  // there are a few hundred properties
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(name); found != known.end()) return found->second;
  const std::optional<std::string> ranges = make();
  if (ranges) known.emplace(name, *ranges);
  return ranges;
}

struct Escape {
  size_t num_bytes;                   ///< of the escape in the pattern
  std::optional<std::string> ranges;  ///< the replacement
};

/// Reads the escape at the front of `rest` (which starts with a backslash).
Escape read_escape(std::string_view rest) {
  if (rest.size() < 2) return {rest.size(), std::nullopt};
  const char letter = rest[1];
  if (letter == 'w' || letter == 'W' || letter == 'd' || letter == 'D')
    return {2, remembered(std::string(1, letter), [&] { return shorthand_ranges(letter); })};
  if ((letter != 'p' && letter != 'P') || rest.size() < 4 || rest[2] != '{')
    return {2, std::nullopt};
  const size_t end = rest.find('}', 3);
  if (end == std::string_view::npos) return {2, std::nullopt};
  std::string_view name = rest.substr(3, end - 3);
  bool negated = letter == 'P';
  if (name.starts_with('^')) {
    negated = !negated;
    name.remove_prefix(1);
  }
  const std::string key = (negated ? "^" : "") + long_name_to_short(plain_name(name));
  return {end + 1, remembered("p" + key, [&] { return property_ranges(name, negated); })};
}

}  // namespace

std::string expand_properties(std::string_view pattern) {
  std::string out;
  int bracket_depth = 0;
  for (size_t i = 0; i < pattern.size();) {
    const char c = pattern[i];
    if (c == '\\') {
      const Escape escape = read_escape(pattern.substr(i));
      if (!escape.ranges) {
        out += pattern.substr(i, escape.num_bytes);
      } else if (bracket_depth > 0) {
        out += *escape.ranges;
      } else {
        out += '[' + *escape.ranges + ']';
      }
      i += escape.num_bytes;
      continue;
    }
    if (bracket_depth > 0 && pattern.substr(i).starts_with("[:")) {  // [[:alpha:]]
      const size_t end = pattern.find(":]", i + 2);
      if (end != std::string_view::npos) {
        out += pattern.substr(i, end + 2 - i);
        i = end + 2;
        continue;
      }
    }
    if (c == '[') ++bracket_depth;
    if (c == ']' && bracket_depth > 0) --bracket_depth;
    out += c;
    ++i;
  }
  return out;
}

}  // namespace sftrun::tokenizer
