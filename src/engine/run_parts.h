#pragma once

#include <filesystem>
#include <string>
#include <vector>

/// What a run directory holds of its run (docs/run-directory.md).
namespace sftrun::engine {

/// Moves what an earlier run left into `<run directory>/old-<n>`, and copies its logs there. Other
/// files stay. Checkpoints go first: a crash in between leaves nothing that could be taken for a
/// run to go on with.
/// @return that directory; empty where there was nothing
std::filesystem::path set_run_aside(const std::filesystem::path& run_dir);

/// Of the files that a run has by its end, those that somebody removed while it was going on.
std::vector<std::string> missing_parts(const std::filesystem::path& run_dir, bool has_tensorboard,
                                       int64_t last_step);

}  // namespace sftrun::engine
