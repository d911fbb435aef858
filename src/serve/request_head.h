#pragma once

#include <optional>
#include <string>
#include <string_view>

/// What the first lines of a request say (RFC 9110 and RFC 9112).
namespace sftrun::serve {

/// The target of a request, without its query.
struct RequestTarget {
  std::string path;  ///< decoded
  /// "host" or "host:port" of a target in absolute form, "http://host/path", as proxies are sent one.
  std::optional<std::string> host = std::nullopt;
};

/// @param text "/path" or "http://host/path", with its escapes; other forms become a path   @return
/// nullopt: the host is none, or the path has a control character, which may end it elsewhere
std::optional<RequestTarget> parse_target(std::string_view text);

/// Whether a text is "host" or "host:port", or empty, as the header Host has it.
bool is_host(std::string_view text);

/// "application/json; charset=utf-8"
struct MediaType {
  std::string type;     ///< in lower case, without parameters
  std::string charset;  ///< in lower case; empty: not named
};
MediaType parse_media_type(std::string_view header);

}  // namespace sftrun::serve
