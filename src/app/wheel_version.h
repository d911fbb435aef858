#pragma once

#include <filesystem>
#include <string>
#include <string_view>

/// What LibTorch's Python package says about itself in version.py.
namespace sftrun::app {

/// The text in single quotes that a line assigns to `name`, which may have a type:
/// "cuda: Optional[str] = '13.0'". Empty if there is none.
std::string wheel_variable(const std::filesystem::path& torch, std::string_view name);

}  // namespace sftrun::app
