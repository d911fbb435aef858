#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

/// Libraries that Python's packages bring. No Python is run.
namespace sftrun {

/// Value of an environment variable, or null.
using EnvironmentReader = std::function<const char*(const char*)>;

/// Folders of an installed package, `torch` in .../site-packages/torch. First those of the active
/// environment (VIRTUAL_ENV, then CONDA_PREFIX), then the user's (~/.local) and the system's; of each
/// environment the newest Python first. Only folders that exist.
std::vector<std::filesystem::path> python_packages(const std::string& name,
                                                   const EnvironmentReader& variable);

}  // namespace sftrun
