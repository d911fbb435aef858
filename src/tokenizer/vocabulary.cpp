#include "vocabulary.h"

#include <bit>

namespace sftrun::tokenizer {

StringTable::StringTable(const std::vector<std::optional<std::string>>& strings) {
  offsets_.reserve(strings.size() + 1);
  present_.reserve(strings.size());
  for (const auto& text : strings) {
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    present_.push_back(text.has_value());
    if (text) {
      bytes_ += *text;
      ++count_;
    }
  }
  offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  slots_.assign(std::bit_ceil(count_ * 2 + 1), -1);
  for (size_t id = 0; id < strings.size(); ++id) {
    if (!present_[id]) continue;
    const std::string_view text = at(static_cast<TokenId>(id));
    size_t slot = hash_bytes(text) & (slots_.size() - 1);
    while (slots_[slot] >= 0 && at(slots_[slot]) != text) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = static_cast<TokenId>(id);
  }
}

std::optional<TokenId> StringTable::find(std::string_view text) const {
  if (slots_.empty()) return std::nullopt;
  for (size_t slot = hash_bytes(text) & (slots_.size() - 1); slots_[slot] >= 0;
       slot = (slot + 1) & (slots_.size() - 1)) {
    if (at(slots_[slot]) == text) return slots_[slot];
  }
  return std::nullopt;
}

}  // namespace sftrun::tokenizer
