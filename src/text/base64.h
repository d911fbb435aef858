#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sftrun::text {

/// Standard alphabet with padding, as the formats that carry bytes in text have it; nothing for
/// anything else.
std::optional<std::string> decode_base64(std::string_view text);
std::string encode_base64(std::string_view bytes);

}  // namespace sftrun::text
