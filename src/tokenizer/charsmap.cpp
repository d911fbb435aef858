#include "charsmap.h"

#include <cstring>

#include "sftrun/core/error.h"
#include "sftrun/core/utf8.h"
#include "text_edit.h"
#include "unicode.h"

namespace sftrun::tokenizer {
namespace {

/// A unit of darts-clone's double array (its details.h): label in the low byte, a flag for "has a
/// value", and the distance to the children.
uint32_t label_of(uint32_t unit) {
  return unit & (1U << 31 | 0xFF);
}
bool has_value(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t offset_of(uint32_t unit) {
  return (unit >> 10) << ((unit & 1U << 9) >> 6);
}
uint32_t value_of(uint32_t unit) {
  return unit & ((1U << 31) - 1);
}

/// End of the grapheme cluster (UAX #29) that begins at `begin`. Hangul and flags are not handled:
/// their clusters, and parts of them with joining characters, are too long to be replaced whole.
size_t end_of_cluster(std::string_view text, size_t begin) {
  const PropertyTable& table = PropertyTable::get();
  DecodedChar c = decode_char(text.data() + begin);
  size_t end = begin + c.num_bytes;
  if (c.code == '\r') return end < text.size() && text[end] == '\n' ? end + 1 : end;
  const auto is_control = [&](char32_t code) {
    if (code < 0x80) return code < 0x20 || code == 0x7F;
    const Category category = table.category(code);
    const bool formats = category == Category::kCc || category == Category::kZl ||
                         category == Category::kZp || category == Category::kCf;
    return formats && !table.joins_grapheme(code) && !prefixes_grapheme(code);
  };
  if (is_control(c.code)) return end;
  while (end < text.size()) {
    const DecodedChar next = decode_char(text.data() + end);
    const bool joins =
        table.joins_grapheme(next.code) || (prefixes_grapheme(c.code) && !is_control(next.code));
    if (!joins) break;
    c = next;
    end += next.num_bytes;
  }
  return end;
}

constexpr size_t kMaxClusterBytes = 5;

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& where) {
  uint32_t num_bytes = 0;
  if (bytes.size() >= sizeof num_bytes) std::memcpy(&num_bytes, bytes.data(), sizeof num_bytes);
  const bool fits =
      bytes.size() >= sizeof num_bytes && num_bytes <= bytes.size() - sizeof num_bytes;
  if (!fits || num_bytes < sizeof(uint32_t) || num_bytes % sizeof(uint32_t) != 0)
    throw DataError("the precompiled_charsmap of the normalizer is damaged", where);
  units_.resize(num_bytes / sizeof(uint32_t));
  std::memcpy(units_.data(), bytes.data() + sizeof num_bytes, num_bytes);
  replacements_ = bytes.substr(sizeof num_bytes + num_bytes);
  if (find_invalid_utf8(replacements_) != std::string_view::npos)
    throw DataError("the precompiled_charsmap of the normalizer has text that is not UTF-8", where);
  for (int c = 1; c < 128; ++c) {
    const char text = static_cast<char>(c);
    ascii_changes_[static_cast<size_t>(c)] = replacement({&text, 1}).has_value();
  }
  ascii_changes_['\r'] = true;  // it may form one cluster with \n
}

/// The replacement of the shortest known prefix of the text.
std::optional<std::string_view> Charsmap::replacement(std::string_view text) const {
  uint32_t node = offset_of(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0) return std::nullopt;
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) return std::nullopt;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (!has_value(unit)) continue;
    const uint32_t at = node < units_.size() ? value_of(units_[node]) : UINT32_MAX;
    const bool on_character = at < replacements_.size() && !is_continuation_byte(replacements_[at]);
    if (!on_character)
      throw DataError("the precompiled_charsmap of the tokenizer's normalizer is damaged");
    const std::string_view rest = std::string_view(replacements_).substr(at);
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

bool Charsmap::surely_keeps(std::string_view text) const {
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x80 || ascii_changes_[byte]) return false;
  }
  return true;
}

NormalizedText Charsmap::run(std::string_view text, bool with_sources) const {
  TextEdit edit(text, with_sources);
  const auto is_plain = [&](size_t at) {
    const auto byte = static_cast<uint8_t>(text[at]);
    return byte < 0x80 && !ascii_changes_[byte];
  };
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    // Fast path: a plain character followed by another plain one forms its own cluster.
    end = begin;
    while (end < text.size() && is_plain(end) && (end + 1 == text.size() || is_plain(end + 1)))
      ++end;
    if (end > begin) {
      edit.keep(begin, end);
      continue;
    }
    end = end_of_cluster(text, begin);
    const auto whole = end - begin <= kMaxClusterBytes
                           ? replacement(text.substr(begin, end - begin))
                           : std::nullopt;
    if (whole) {
      edit.write(*whole, begin, end);
      continue;
    }
    for (size_t at = begin; at < end;) {
      const size_t next = at + decode_char(text.data() + at).num_bytes;
      const auto part = replacement(text.substr(at, next - at));
      part ? edit.write(*part, at, next) : edit.keep(at, next);
      at = next;
    }
  }
  return edit.take();
}

}  // namespace sftrun::tokenizer
