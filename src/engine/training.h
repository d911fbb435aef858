#pragma once

#include "prepared_run.h"
#include "rank.h"

namespace sftrun::engine {

/// Trains, and writes run.json before and after, and the result. All ranks call it.
/// @return 0, or the exit code of a stop
int train_and_export(PreparedRun& run, Rank& rank);

}  // namespace sftrun::engine
