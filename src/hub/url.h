#pragma once

#include <string>
#include <string_view>

namespace sftrun::hub {

/// Scheme, host and port of a URL ("https://huggingface.co:443"). Empty if it is not an http or
/// https URL.
std::string origin_of(const std::string& url);
/// The URL that `location` names in a response from `base`; empty: none, or none that is valid.
std::string absolute_url(const std::string& location, const std::string& base);
/// A URL for messages: without user, fragment and query (which contains the signature of storage
/// links).
std::string shown_url(const std::string& url);
/// Percent-encodes a part of a URL's path. @param keep_slashes for a path of several parts
std::string quoted(std::string_view text, bool keep_slashes);
/// The target of `rel="next"` in a Link header; empty: none.
std::string next_link(std::string_view header);

}  // namespace sftrun::hub
