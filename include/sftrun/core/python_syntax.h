#pragma once

#include <string>
#include <string_view>

namespace sftrun {

/// Why Python's `re` would refuse a regular expression, or read it otherwise than Oniguruma does; empty: both read it alike.
/// Refused are thus possessive repeats and atomic groups (new in Python 3.11), the flags a, L and u, and names of
/// characters (\N{…}), too.
/// @param pattern valid UTF-8
std::string python_syntax_problem(std::string_view pattern);

/// The expression that PEFT makes of a key of `rank_pattern` and `alpha_pattern`, and matches with re.match.
std::string peft_key_pattern(std::string_view key);

/// Why a text is no such key; empty: it is one.
std::string peft_key_problem(const std::string& key);

}  // namespace sftrun
