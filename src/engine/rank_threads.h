#pragma once

#include <functional>
#include <vector>

#include "commands.h"
#include "rank.h"

/// Ranks that are threads of one process.
namespace sftrun::engine {

/// Runs `body` for every rank, the first one in this thread, the others in threads of their own that
/// log errors only. When one fails, its connections are closed, so that the others fail, too; a rank
/// that waits for its device nevertheless ends with the process.
/// @param context for the report
/// @return the exit code of the first rank, or of the one that failed first, which is reported
int run_rank_threads(const std::vector<Rank*>& ranks, const FailureContext& context,
                     const std::function<int(Rank&)>& body);

/// The same with a rank for each stage of a model on the devices of this process, which share its
/// CPU threads.   @param main becomes the first of them   @param gpus index of each stage's GPU
int run_stage_threads(Rank& main, const std::vector<int>& gpus, const FailureContext& context,
                      const std::function<int(Rank&)>& body);

}  // namespace sftrun::engine
