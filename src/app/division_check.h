#pragma once

#include <cstdint>

#include "cli.h"
#include "sftrun/config/axes.h"
#include "sftrun/plan/model_use.h"

/// Whether the flags that divide a model fit the model and the processes, before a worker starts.
/// Errors name flags, and sizes that fit.
namespace sftrun::app {

/// What a command does with its processes, and the words for that.
struct DividedUse {
  const char* command = "the command";  ///< "serve"
  bool has_one_copy = false;            ///< as plan::ModelUse::has_one_copy
  bool takes_shards = true;             ///< whether `--strategy fsdp` is for it
  int nnodes = 1;                       ///< machines
  bool is_stream = false;               ///< it reads or writes a stream, in one process
};

/// @param files of the model; null: they cannot be read, which the engine reports
/// @param tuning how the base is held   @param processes of all machines
/// @throws ConfigError
void check_division(const DivisionFlags& flags, const DividedUse& use,
                    const plan::ModelFiles* files, const config::TuningConfig& tuning,
                    int64_t processes);

}  // namespace sftrun::app
