#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Chat templates for models without one of their own, chosen by name.
namespace sftrun::text {

/// Empty: there is none of this name.
std::string_view builtin_template(std::string_view name);
/// In the order in which they are listed to users.
std::vector<std::string> builtin_template_names();

}  // namespace sftrun::text
