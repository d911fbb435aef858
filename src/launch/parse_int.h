#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sftrun::launch {

/// All of `text` as a decimal integer; nullopt otherwise.
inline std::optional<int64_t> parse_int(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace sftrun::launch
