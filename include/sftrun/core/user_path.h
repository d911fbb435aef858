#pragma once

#include <string>
#include <string_view>

namespace sftrun {

/// A path as a user writes it, with `~` and `~user` at its beginning replaced by a home directory, as in Python's
/// os.path.expanduser: HOME, else the home directory of the system's list of users. A user that is not listed stays as written.
std::string expanded_home(const std::string& path);

/// Whether a text in the place of a path means that there is none: "none", "None", "NONE", "null", "Null", "NULL" and "~".
/// A file of such a name is written as ./none.
bool is_none_word(std::string_view text);

}  // namespace sftrun
