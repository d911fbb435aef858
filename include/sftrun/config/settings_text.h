#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace sftrun::config {

/// Keys ("train.learning_rate") and values as text, in the order of a file.
using SettingsText = std::vector<std::pair<std::string, std::string>>;

/// The settings that a YAML file names. Keys and values are not checked, so files of other versions
/// can be read.
/// @throws DataError if the file cannot be read, ConfigError if it is not YAML
SettingsText read_settings_text(const std::filesystem::path& yaml);

}  // namespace sftrun::config
