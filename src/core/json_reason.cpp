#include "sftrun/core/json_reason.h"

#include <string_view>

#include "sftrun/core/strings.h"

namespace sftrun {

std::string json_reason(const nlohmann::json::exception& error) {
  constexpr int kNumberOverflow = 406, kInvalidUtf8 = 316;
  if (error.id == kNumberOverflow) return "a number is too large";
  if (error.id == kInvalidUtf8) return "a text is not valid UTF-8";
  // "[json.exception.parse_error.101] parse error at line 1, column 2: reason"
  std::string_view text = error.what();
  if (const size_t bracket = text.find("] "); bracket != std::string_view::npos)
    text.remove_prefix(bracket + 2);
  for (const std::string_view before : {"column ", ": "}) {
    if (before == "column " && !text.starts_with("parse error")) break;
    const size_t at = text.find(before);
    if (at == std::string_view::npos) break;
    text.remove_prefix(at + before.size());
  }
  return excerpt(text);
}

}  // namespace sftrun
