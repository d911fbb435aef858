#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

/// The loaders of config/load.h, with the files of Accelerate and DeepSpeed that a run names.
namespace sftrun::foreign {

config::LoadedConfig load_config(const std::filesystem::path& yaml,
                                 const std::vector<std::string>& overrides);
config::LoadedConfig load_config_for_eval(const std::filesystem::path& yaml,
                                          const std::vector<std::string>& overrides);
config::LoadedConfig config_from_overrides(const std::vector<std::string>& overrides);

}  // namespace sftrun::foreign
