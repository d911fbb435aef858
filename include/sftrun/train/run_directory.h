#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// The files that a run keeps in its directory (docs/run-directory.md).
namespace sftrun::train {

/// Moves the files of an earlier run into `<run directory>/old-<n>` and copies its logs there. Other
/// files stay. Checkpoints are moved first, so that a crash in between leaves no run that could be
/// resumed by mistake.
/// @return that directory; empty if there was nothing to move
std::filesystem::path set_run_aside(const std::filesystem::path& run_dir);

/// The files of a finished run that somebody removed during the run.
std::vector<std::string> missing_parts(const std::filesystem::path& run_dir, bool has_tensorboard,
                                       int64_t last_step);
/// Reports such files: a warning for a run that stopped early.   @param exit_code of the run
/// @throws DataError if the run finished
void require_parts(const std::filesystem::path& run_dir, bool has_tensorboard, int64_t last_step,
                   int exit_code);

}  // namespace sftrun::train
