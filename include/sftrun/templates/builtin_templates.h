#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Built-in chat templates, selected by name, for models without a chat template.
namespace sftrun::templates {

/// Empty: no template has this name.
std::string_view builtin_template(std::string_view name);
/// The same for a model that reads images: content may be a list of parts. Texts are written as they are, one after the other, and
/// each image or video as the model's own template writes it.
/// @param image, video what that writes for one; empty: nothing
/// @pre there is a template of this name
std::string builtin_template_with_images(std::string_view name, std::string_view image,
                                         std::string_view video);
/// The built-in template with this text; empty: it is another one.
std::string builtin_template_name(std::string_view source);
/// In the order for messages and documents.
std::vector<std::string> builtin_template_names();

}  // namespace sftrun::templates
