#include "unicode.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "unicode_tables.h"

namespace sftrun::text {

const PropertyTable& PropertyTable::get() {
  static const PropertyTable table;
  return table;
}

PropertyTable::PropertyTable() {
  std::map<std::vector<uint16_t>, uint16_t> known;
  std::vector<uint16_t> block(1u << kBlockBits, 0);
  const PropertyRun* run = std::begin(kPropertyRuns);
  for (uint32_t c = 0; c < 0x110000; ++c) {
    while (run + 1 != std::end(kPropertyRuns) && run[1].first <= c) ++run;
    block[c & kBlockMask] = run->properties;
    if ((c & kBlockMask) != kBlockMask) continue;
    const auto [found, is_new] = known.try_emplace(block, static_cast<uint16_t>(known.size()));
    if (is_new) blocks_.insert(blocks_.end(), block.begin(), block.end());
    block_of_[c >> kBlockBits] = found->second;
  }
}

bool is_white_space(char32_t c) {
  if (c <= 0x20) return c == 0x20 || (c >= 0x09 && c <= 0x0D);
  if (c < 0x1680) return c == 0x85 || c == 0xA0;
  return c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_rust_numeric(char32_t c) {
  if (PropertyTable::get().is_number(c)) return true;
  return std::any_of(
      std::begin(kNewerNumeric), std::end(kNewerNumeric),
      [c](const CodePointRange& range) { return c >= range.first && c <= range.last; });
}

void append_lower(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return;
  }
  if (!PropertyTable::get().has_lower(c)) return append_utf8(out, c);
  const auto* found =
      std::lower_bound(std::begin(kLower), std::end(kLower), c,
                       [](const LowerCase& entry, char32_t value) { return entry.from < value; });
  append_utf8(out, found->first);
  if (found->second != 0) append_utf8(out, found->second);
}

int script_of(char32_t c) {
  const auto* run =
      std::upper_bound(std::begin(kScriptRuns), std::end(kScriptRuns), c,
                       [](char32_t value, const ScriptRun& r) { return value < r.first; });
  return run == std::begin(kScriptRuns) ? 0 : run[-1].script;
}

bool prefixes_grapheme(char32_t c) {
  return std::any_of(
      std::begin(kGraphemePrefixes), std::end(kGraphemePrefixes),
      [c](const CodePointRange& range) { return c >= range.first && c <= range.last; });
}

const CodePointRange* han_ranges(size_t& num_ranges) {
  num_ranges = std::size(kHan);
  return kHan;
}

DecodedChar decode_last_char(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return decode_char(text.data() + begin);
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 63));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 63));
    out += static_cast<char>(0x80 | (c & 63));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 63));
    out += static_cast<char>(0x80 | (c >> 6 & 63));
    out += static_cast<char>(0x80 | (c & 63));
  }
}

namespace {

struct Sequence {
  uint32_t num_bytes;  ///< of the character, or of the maximal ill-formed prefix
  bool valid;
};

/// Classifies the sequence at the front of `bytes` (table 3-7 of the Unicode standard).
Sequence scan_sequence(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const uint32_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = 0x80, high = 0xBF;  // of the second byte
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (uint32_t i = 1; i < length; ++i) {
    if (i >= bytes.size() || byte(i) < low || byte(i) > high) return {i, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

}  // namespace

size_t find_invalid_utf8(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    if (static_cast<uint8_t>(bytes[i]) < 0x80) {
      ++i;
      continue;
    }
    const Sequence sequence = scan_sequence(bytes.substr(i));
    if (!sequence.valid) return i;
    i += sequence.num_bytes;
  }
  return std::string_view::npos;
}

std::string utf8_lossy(std::string_view bytes) {
  if (find_invalid_utf8(bytes) == std::string_view::npos) return std::string(bytes);
  std::string out;
  out.reserve(bytes.size() + 8);
  while (!bytes.empty()) {
    const Sequence sequence = scan_sequence(bytes);
    if (sequence.valid) {
      out += bytes.substr(0, sequence.num_bytes);
    } else {
      out += "\xEF\xBF\xBD";
    }
    bytes.remove_prefix(sequence.num_bytes);
  }
  return out;
}

}  // namespace sftrun::text
