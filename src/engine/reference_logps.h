#pragma once

#include <string>

#include "prepared_run.h"
#include "rank.h"

/// Log-probabilities of the answers by the reference model, computed before the first step
/// (`config::precomputes_reference`). Training then reads them with its examples.
namespace sftrun::engine {

/// By another model or adapter (`train.reference: PATH`), which is loaded alone, divided as the run
/// is. All ranks call it before the run's own model is loaded.   @param device as --device has it
/// @return 0, or the exit code of a stop
/// @throws DataError, ConfigError for a model that cannot be the run's reference
int add_logps_of_other_model(PreparedRun& run, const std::string& device, Rank& rank);

/// By the run's own model as it starts, or its base. All ranks call it after the model was loaded,
/// before a checkpoint is read.   @pre add_weights
int add_logps_of_own_model(PreparedRun& run, Rank& rank);

}  // namespace sftrun::engine
