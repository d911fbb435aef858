#include "nfc.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <unordered_map>

#include "unicode_tables.h"

namespace sftrun::text {
namespace {

// Hangul syllables are computed: section 3.12 of the Unicode standard.
constexpr char32_t kSBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161, kTBase = 0x11A7;
constexpr uint32_t kNumL = 19, kNumV = 21, kNumT = 28, kNumS = kNumL * kNumV * kNumT;

struct Marked {
  char32_t code;
  uint8_t combining_class;
};

uint8_t combining_class(char32_t c) {
  if (c < 0x300) return 0;
  const auto* run =
      std::upper_bound(std::begin(kCombining), std::end(kCombining), c,
                       [](char32_t value, const CombiningRun& r) { return value < r.first; });
  if (run == std::begin(kCombining)) return 0;
  --run;
  return c <= run->last ? run->combining_class : 0;
}

void decompose(char32_t c, std::vector<Marked>& out) {
  if (c >= kSBase && c < kSBase + kNumS) {
    const uint32_t s = c - kSBase;
    out.push_back({kLBase + s / (kNumV * kNumT), 0});
    out.push_back({kVBase + s % (kNumV * kNumT) / kNumT, 0});
    if (s % kNumT != 0) out.push_back({kTBase + s % kNumT, 0});
    return;
  }
  const auto* found =
      std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                       [](const Decomposition& d, char32_t value) { return d.from < value; });
  if (found == std::end(kDecompositions) || found->from != c) {
    out.push_back({c, combining_class(c)});
    return;
  }
  decompose(found->first, out);
  if (found->second != 0) decompose(found->second, out);
}

const std::unordered_map<uint64_t, char32_t>& compositions() {
  static const auto table = [] {
    std::unordered_map<uint64_t, char32_t> pairs;
    for (const Decomposition& d : kDecompositions) {
      if (d.composes) pairs.emplace(uint64_t{d.first} << 32 | d.second, d.from);
    }
    return pairs;
  }();
  return table;
}

std::optional<char32_t> compose(char32_t first, char32_t second) {
  if (first >= kLBase && first < kLBase + kNumL && second >= kVBase && second < kVBase + kNumV) {
    return kSBase + ((first - kLBase) * kNumV + (second - kVBase)) * kNumT;
  }
  if (first >= kSBase && first < kSBase + kNumS && (first - kSBase) % kNumT == 0 &&
      second > kTBase && second < kTBase + kNumT) {
    return first + (second - kTBase);
  }
  const auto found = compositions().find(uint64_t{first} << 32 | second);
  return found == compositions().end() ? std::nullopt : std::optional(found->second);
}

/// Marks of one character into the order of their classes, equal classes as they stood.
void reorder(std::vector<Marked>& chars) {
  for (auto begin = chars.begin(); begin != chars.end();) {
    if (begin->combining_class == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, chars.end(), [](const Marked& m) { return m.combining_class == 0; });
    std::stable_sort(begin, end, [](const Marked& a, const Marked& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

/// Definition D117 and the composition algorithm of section 3.11, in place.
void recompose(std::vector<Marked>& chars) {
  size_t kept = 0;
  std::optional<size_t> starter;
  for (size_t i = 0; i < chars.size(); ++i) {
    const Marked c = chars[i];
    if (starter) {
      const bool adjacent = kept == *starter + 1;
      const bool blocked = !adjacent && chars[kept - 1].combining_class >= c.combining_class;
      const auto composed = blocked ? std::nullopt : compose(chars[*starter].code, c.code);
      if (composed) {
        chars[*starter].code = *composed;
        continue;
      }
    }
    if (c.combining_class == 0) starter = kept;
    chars[kept++] = c;
  }
  chars.resize(kept);
}

}  // namespace

bool is_surely_nfc(std::string_view text) {
  const PropertyTable& table = PropertyTable::get();
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0xCC) {  // below U+0300 nothing is active
      ++i;
      continue;
    }
    const DecodedChar c = decode_char(text.data() + i);
    if (table.is_nfc_active(c.code)) return false;
    i += c.num_bytes;
  }
  return true;
}

NormalizedText to_nfc(std::string_view text) {
  const PropertyTable& table = PropertyTable::get();
  NormalizedText out;
  out.text.reserve(text.size());
  out.sources.reserve(text.size());
  std::vector<Marked> chars;
  std::string run_text;
  for (size_t begin = 0; begin < text.size();) {
    // A run reaches to the next character that nothing before it can change; runs normalise on
    // their own.
    size_t end = begin;
    chars.clear();
    do {
      const DecodedChar c = decode_char(text.data() + end);
      if (end != begin && !table.is_nfc_active(c.code)) break;
      decompose(c.code, chars);
      end += c.num_bytes;
    } while (end < text.size());
    reorder(chars);
    recompose(chars);
    run_text.clear();
    for (const Marked& c : chars) append_utf8(run_text, c.code);
    const bool same = run_text == text.substr(begin, end - begin);
    for (size_t i = 0; i < run_text.size(); ++i) {
      const size_t at = begin + i;
      out.sources.push_back(
          same ? ByteSpan{static_cast<uint32_t>(at), static_cast<uint32_t>(at + 1)}
               : ByteSpan{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
    }
    out.text += run_text;
    begin = end;
  }
  return out;
}

}  // namespace sftrun::text
