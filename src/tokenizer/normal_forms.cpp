#include "normal_forms.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <unordered_map>

#include "sftrun/core/utf8.h"
#include "unicode_tables.h"

namespace sftrun::tokenizer {
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

/// Sorts the marks of one character by class; equal classes keep their order.
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

namespace {

bool composes(NormalForm form) {
  return form == NormalForm::kNfc || form == NormalForm::kNfkc;
}
bool is_compatible(NormalForm form) {
  return form == NormalForm::kNfkc || form == NormalForm::kNfkd;
}

/// Properties of the code points that the form may change, alone or after another code point.
uint16_t active_properties(NormalForm form) {
  uint16_t out = PropertyTable::kNfcActive;
  if (is_compatible(form)) out |= PropertyTable::kCompatible;
  if (!composes(form)) out |= PropertyTable::kCanonical;
  return out;
}

/// Below this code point only Latin-1 characters have properties, and only in some forms.
constexpr uint8_t kLeadOfU0300 = 0xCC, kLeadOfU0080 = 0xC2;

void decompose(NormalForm form, char32_t c, std::vector<Marked>& out) {
  if (!is_compatible(form) || !PropertyTable::get().has(c, PropertyTable::kCompatible))
    return decompose(c, out);
  const auto* found =
      std::lower_bound(std::begin(kCompatible), std::end(kCompatible), c,
                       [](const Compatible& d, char32_t value) { return d.from < value; });
  for (uint16_t i = 0; i < found->length; ++i) {
    const char32_t part = kCompatibleChars[found->offset + i];
    out.push_back({part, combining_class(part)});
  }
}

}  // namespace

bool is_surely(NormalForm form, std::string_view text) {
  const PropertyTable& table = PropertyTable::get();
  const uint16_t active = active_properties(form);
  const uint8_t first_lead = form == NormalForm::kNfc ? kLeadOfU0300 : kLeadOfU0080;
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < first_lead) {
      ++i;
      continue;
    }
    const DecodedChar c = decode_char(text.data() + i);
    if (table.has(c.code, active)) return false;
    i += c.num_bytes;
  }
  return true;
}

namespace {

/// End of the run that starts at `begin`: the next character that no earlier character can change.
/// Runs are normalised independently.
size_t end_of_run(std::string_view text, size_t begin, uint16_t active) {
  const PropertyTable& table = PropertyTable::get();
  size_t end = begin + decode_char(text.data() + begin).num_bytes;
  while (end < text.size()) {
    const DecodedChar c = decode_char(text.data() + end);
    if (!table.has(c.code, active)) break;
    end += c.num_bytes;
  }
  return end;
}

void append_as_it_is(NormalizedText& out, std::string_view text, size_t begin, size_t end,
                     bool with_sources) {
  out.text += text.substr(begin, end - begin);
  if (!with_sources) return;
  for (auto i = static_cast<uint32_t>(begin); i < end; ++i) out.sources.push_back({i, i + 1});
}

}  // namespace

NormalizedText normalize(NormalForm form, std::string_view text, bool with_sources) {
  const PropertyTable& table = PropertyTable::get();
  const uint16_t active = active_properties(form);
  NormalizedText out;
  out.text.reserve(text.size());
  if (with_sources) out.sources.reserve(text.size());
  std::vector<Marked> chars;
  std::string run_text;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end = end_of_run(text, begin, active);
    const DecodedChar first = decode_char(text.data() + begin);
    if (begin + first.num_bytes == end && !table.has(first.code, active)) {
      append_as_it_is(out, text, begin, end, with_sources);
      continue;
    }
    chars.clear();
    for (size_t at = begin; at < end;) {
      const DecodedChar c = decode_char(text.data() + at);
      decompose(form, c.code, chars);
      at += c.num_bytes;
    }
    reorder(chars);
    if (composes(form)) recompose(chars);
    run_text.clear();
    for (const Marked& c : chars) append_utf8(run_text, c.code);
    if (run_text == text.substr(begin, end - begin)) {
      append_as_it_is(out, text, begin, end, with_sources);
      continue;
    }
    out.text += run_text;
    if (with_sources) {
      const ByteSpan source{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
      out.sources.insert(out.sources.end(), run_text.size(), source);
    }
  }
  return out;
}

}  // namespace sftrun::tokenizer
