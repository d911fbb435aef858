#pragma once

#include <filesystem>

/// What a directory holds that is no run's, and that a run must not replace.
namespace sftrun::observe {

/// @throws ConfigError if the directory is itself that of a model or an adapter
void require_no_model(const std::filesystem::path& run_dir);
/// For a run without a checkpoint, which has no results: adapter/ or model/ are those of another.
/// @throws ConfigError
void require_no_results(const std::filesystem::path& run_dir);

}  // namespace sftrun::observe
