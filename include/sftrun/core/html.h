#pragma once

#include <string>
#include <string_view>

namespace sftrun {

/// Text for HTML content and for attribute values in double quotes. Bytes that are not valid UTF-8
/// become U+FFFD.
std::string escape_html(std::string_view text);

}  // namespace sftrun
