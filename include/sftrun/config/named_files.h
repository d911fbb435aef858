#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/assignment.h"

/// Files of Accelerate and DeepSpeed that a run names: a layer between the machine file and the
/// run's YAML.
namespace sftrun::config {

using AssignmentLayers = std::vector<const std::vector<Assignment>*>;

/// What a file gives to a field.
struct Given {
  Assignment assignment;
  std::string from;     ///< the file's key; empty: a default of the tool
  bool is_firm = true;  ///< false: the run may say otherwise
};

/// What the named files say.
struct NamedFiles {
  std::vector<Given> given;
  MachineSettings launch;
  std::vector<std::string> notes, warnings;

  std::vector<Assignment> assignments() const;
  /// Whether the value of `key` at `place` is one that the run may replace without a contradiction.
  bool is_default(const std::string& key, const std::string& place) const;
};

/// The assignment of the highest layer; nullptr: the key is not set, or set to nothing.
const Assignment* last_of(const AssignmentLayers& layers, std::string_view key);

/// The run's assignments without those that leave a value to a named file (auto, null).
/// Values that contradict a named file go to `problems`, with both places, unless a layer above the
/// run sets the key.
std::vector<Assignment> agreeing(std::vector<Assignment> run, const NamedFiles& named,
                                 const AssignmentLayers& above, Problems& problems);

}  // namespace sftrun::config
