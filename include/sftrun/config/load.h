#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "sftrun/config/named_files.h"
#include "sftrun/config/run_config.h"
#include "sftrun/config/value.h"

/// Loads configurations. The program calls the loaders of foreign/load.h, which know the files of
/// other tools.
namespace sftrun::config {

/// The functions of the module `foreign` that loading a configuration calls.
struct ForeignFiles {
  /// @throws ConfigError if the file that is given as a run's YAML is of another tool
  void (*require_own_run)(const Value& document, const std::filesystem::path& file);
  /// Reads the files that the last of `layers` names. Problems of the files go to `problems`.
  /// @param located the path of a file as a run names it
  /// @throws DataError naming the key if a file does not exist
  NamedFiles (*read_named)(const AssignmentLayers& layers,
                           const std::function<std::filesystem::path(const std::string&)>& located,
                           Problems& problems);
};

/// Reads the YAML, applies machine file, the files of Accelerate and DeepSpeed that are named,
/// environment and `key=value` overrides by precedence, and checks every field and all relations
/// between fields. Paths in data.train, data.val, data.image_root, model.name,
/// model.chat_template and tuning.lora.init_from that do not exist in the current directory but beside the YAML are replaced
/// by the latter.
/// @throws ConfigError with *all* problems, each with file:line:column or its override; DataError
/// if the YAML cannot be read.
LoadedConfig load_config(const std::filesystem::path& yaml,
                         const std::vector<std::string>& overrides, const ForeignFiles& foreign);
/// The same for `sftrun eval`, which does not look at what concerns training only: when a run
/// evaluates, and its best evaluation. Of data.val and data.val_split, one in `overrides` takes
/// the place of the other.
LoadedConfig load_config_for_eval(const std::filesystem::path& yaml,
                                  const std::vector<std::string>& overrides,
                                  const ForeignFiles& foreign);
/// A configuration from overrides and environment only (bench). Model and data are not required.
LoadedConfig config_from_overrides(const std::vector<std::string>& overrides,
                                   const ForeignFiles& foreign);

}  // namespace sftrun::config
