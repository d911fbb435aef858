#pragma once

#include <string>
#include <string_view>

namespace sftrun::hub {

/// The part of a URL that says who answers: scheme, host and port ("https://huggingface.co:443").
/// Empty for what is no http or https URL.
std::string origin_of(const std::string& url);
/// A URL for messages: without user, query (which signs the links of storage hosts) and fragment.
std::string shown_url(const std::string& url);
/// Percent-encoded for a URL's path. @param keep_slashes of a path of several parts
std::string quoted(std::string_view text, bool keep_slashes);
/// The target of `rel="next"` in a Link header; empty: none.
std::string next_link(std::string_view header);

}  // namespace sftrun::hub
