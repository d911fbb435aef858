#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sftrun {

/// Decodes the standard alphabet with padding; nothing for other text.
std::optional<std::string> decode_base64(std::string_view text);
std::string encode_base64(std::string_view bytes);

}  // namespace sftrun
