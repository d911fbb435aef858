#include "sftrun/foreign/load.h"

#include "conversion.h"
#include "named_files.h"
#include "sftrun/config/load.h"

namespace sftrun::foreign {
namespace {

constexpr config::ForeignFiles kForeignFiles{.require_own_run = require_own_run,
                                             .read_named = read_named_files};

}  // namespace

config::LoadedConfig load_config(const std::filesystem::path& yaml,
                                 const std::vector<std::string>& overrides) {
  return config::load_config(yaml, overrides, kForeignFiles);
}

config::LoadedConfig load_config_for_eval(const std::filesystem::path& yaml,
                                          const std::vector<std::string>& overrides) {
  return config::load_config_for_eval(yaml, overrides, kForeignFiles);
}

config::LoadedConfig config_from_overrides(const std::vector<std::string>& overrides) {
  return config::config_from_overrides(overrides, kForeignFiles);
}

}  // namespace sftrun::foreign
