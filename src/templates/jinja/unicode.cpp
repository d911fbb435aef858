#include "jinja/unicode.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace sftrun::templates::jinja::unicode {
namespace {

struct Range {
  char32_t first, last;
};
struct Mapping {
  char32_t first, last;
  uint8_t stride;
  int32_t delta;
};
struct Expansion {
  char32_t code;
  char32_t to[3];
};
#include "jinja/unicode_tables.inc"

/// The entry whose [first, last] holds `code`, or the end.
template <typename Entry>
const Entry* find_range(std::span<const Entry> entries, char32_t code) {
  const auto after =
      std::upper_bound(entries.begin(), entries.end(), code,
                       [](char32_t wanted, const Entry& entry) { return wanted < entry.first; });
  if (after == entries.begin()) return nullptr;
  const Entry& candidate = *std::prev(after);
  return code <= candidate.last ? &candidate : nullptr;
}

bool in_ranges(std::span<const Range> ranges, char32_t code) {
  return find_range<Range>(ranges, code) != nullptr;
}

}  // namespace

size_t sequence_length(std::string_view text, size_t at) {
  return decode_char_at(text, at).num_bytes;
}

size_t previous(std::string_view text, size_t at) {
  size_t start = at - 1;
  while (start > 0 && at - start < 4 && is_continuation_byte(text[start])) --start;
  return start + sequence_length(text, start) == at ? start : at - 1;
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; });
}

size_t length(std::string_view text) {
  if (is_ascii(text)) return text.size();
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += sequence_length(text, at)) ++count;
  return count;
}

size_t byte_offset(std::string_view text, size_t code_points) {
  size_t at = 0;
  while (at < text.size() && code_points-- > 0) at += sequence_length(text, at);
  return at;
}

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}
bool is_printable(char32_t code) {
  return in_ranges(kPrintable, code);
}
bool is_alpha(char32_t code) {
  return in_ranges(kAlpha, code);
}
bool is_decimal(char32_t code) {
  return in_ranges(kDecimal, code);
}
bool is_digit(char32_t code) {
  return in_ranges(kDigit, code);
}
bool is_numeric(char32_t code) {
  return in_ranges(kNumeric, code);
}
bool is_alnum(char32_t code) {
  return is_alpha(code) || is_decimal(code) || is_digit(code) || is_numeric(code);
}
bool is_lower(char32_t code) {
  return in_ranges(kLower, code);
}
bool is_upper(char32_t code) {
  return in_ranges(kUpper, code);
}
bool is_title(char32_t code) {
  return in_ranges(kTitle, code);
}

namespace {

std::string mapped(char32_t code, std::span<const Mapping> mappings,
                   std::span<const Expansion> expansions) {
  std::string out;
  const auto expansion =
      std::lower_bound(expansions.begin(), expansions.end(), code,
                       [](const Expansion& e, char32_t wanted) { return e.code < wanted; });
  if (expansion != expansions.end() && expansion->code == code) {
    for (const char32_t to : expansion->to) {
      if (to != 0) append_utf8(out, to);
    }
    return out;
  }
  const Mapping* mapping = find_range<Mapping>(mappings, code);
  const bool hit = mapping != nullptr && (code - mapping->first) % mapping->stride == 0;
  append_utf8(out, hit ? static_cast<char32_t>(static_cast<int32_t>(code) + mapping->delta) : code);
  return out;
}

}  // namespace

std::string converted(char32_t code, Case to) {
  switch (to) {
    case Case::kLower:
      return mapped(code, kToLower, kToLowerExpansions);
    case Case::kUpper:
      return mapped(code, kToUpper, kToUpperExpansions);
    case Case::kTitle:
      return mapped(code, kToTitle, kToTitleExpansions);
  }
  return {};
}

}  // namespace sftrun::templates::jinja::unicode
