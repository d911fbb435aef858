#pragma once

#include <optional>
#include <string>

#include "commands.h"
#include "run_check.h"
#include "run_resolution.h"
#include "sftrun/config/run_config.h"

/// What `sftrun train` says of a run before it starts, and instead of it (--dry-run).
/// `asked` is the configuration before it was resolved.
namespace sftrun::app {

/// Resolves each `auto` that does not depend on the data.
config::RunConfig shown_config(const Run& run, const ModelHeaders& headers, bool on_gpu);

/// Logs the configuration, its warnings and those of the model. The workers read the data.
void warn_and_announce(const config::RunConfig& asked, const Run& run,
                       const std::optional<ModelHeaders>& headers, bool on_gpu);

/// YAML; everything that is not configuration is in comments.
/// @param launch what is started, in words   @throws ConfigError if a checkpoint has other settings
void print_dry_run(const TrainOptions& options, const config::RunConfig& asked, const Run& run,
                   const ModelHeaders& headers, bool on_gpu, const std::string& launch);

}  // namespace sftrun::app
