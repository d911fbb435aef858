#pragma once

#include <string>
#include <string_view>

namespace sftrun {

/// A message in which no quote of input is longer than an `excerpt`: neither what stands in one pair of `…` or "…", nor what no blank
/// divides. Paths of up to 4096 bytes stay whole. Errors, the log and the server's answers pass through here; input that is neither
/// quoted nor one word needs an `excerpt` where the message is made.
std::string with_short_quotes(std::string_view message);
/// The same for a place that may begin with a relative path.
std::string with_short_quotes_after_path(std::string_view place);
/// Control characters as \x1b, but line feeds and tabs: a name or a quote must not steer a terminal. Errors and the log pass through here.
std::string with_visible_controls(std::string_view message);
/// A path for a message, also one with blanks: an `excerpt` of what no path can be, because it is too long.
std::string shown_path(std::string_view path);

}  // namespace sftrun
