#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

/// The machine file: launch settings of a machine for every run on it.
namespace sftrun::config {

/// SFTRUN_MACHINE_CONFIG, or sftrun/machine.yaml in XDG_CONFIG_HOME or ~/.config, whether or not it
/// exists; empty: none of these variables is set, and HOME neither.
std::filesystem::path machine_file_path();

/// What a machine file says, for writing one. "auto" is not written.
struct MachineAnswers {
  std::string devices = "auto", dtype = "auto", strategy = "auto";
  int64_t nodes = 1, node_rank = 0;
  std::string master;  ///< "host:port"; only with several nodes
};
/// A commented YAML that load_config reads as these answers.
std::string to_yaml(const MachineAnswers& answers);

/// Whether `text` is "auto", "cpu", a number or a list like "0,2,3".
bool is_device_list(const std::string& text);

}  // namespace sftrun::config
