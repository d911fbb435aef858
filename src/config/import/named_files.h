#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "import/reading.h"
#include "layers.h"

/// Files of Accelerate and DeepSpeed that a run names: a layer between the machine file and the
/// run's YAML.
namespace sftrun::config {

/// What the named files say.
struct NamedFiles {
  std::vector<importing::Given> given;
  MachineSettings launch;
  std::vector<std::string> notes, warnings;

  std::vector<Assignment> assignments() const;
  /// Whether the value of `key` at `place` is one that the run may replace without a contradiction.
  bool is_default(const std::string& key, const std::string& place) const;
};

/// Reads the files that the last of `layers` names. Problems of the files go to `problems`.
/// @param located the path of a file as a run names it
/// @throws DataError naming the key if a file does not exist
NamedFiles read_named_files(const std::vector<const std::vector<Assignment>*>& layers,
                            const std::function<std::filesystem::path(const std::string&)>& located,
                            Problems& problems);

/// The run's assignments without those that leave a value to a named file (auto, null).
/// Values that contradict a named file go to `problems`, with both places, unless a layer above the
/// run sets the key.
std::vector<Assignment> agreeing(std::vector<Assignment> run, const NamedFiles& named,
                                 const std::vector<const std::vector<Assignment>*>& above,
                                 Problems& problems);

}  // namespace sftrun::config
