#include "unicode.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "sftrun/core/utf8.h"
#include "unicode_tables.h"

namespace sftrun::tokenizer {

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

}  // namespace sftrun::tokenizer
