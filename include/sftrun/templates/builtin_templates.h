#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Built-in chat templates, selected by name, for models without a chat template.
namespace sftrun::templates {

/// Empty: no template has this name.
std::string_view builtin_template(std::string_view name);
/// In the order for messages and documents.
std::vector<std::string> builtin_template_names();

}  // namespace sftrun::templates
