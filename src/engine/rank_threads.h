#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "rank.h"

/// Ranks that are threads of one process.
namespace sftrun::engine {

/// Runs `body` for every rank, the first one in this thread, the others in threads of their own that
/// log errors only. When one fails, its connections are closed, so that the others fail, too; a rank
/// that waits for its device nevertheless ends with the process.
/// @param request of the worker, for the report
/// @return the exit code of the first rank, or of the one that failed first, which is reported
int run_rank_threads(const std::vector<Rank*>& ranks, const nlohmann::ordered_json& request,
                     const std::function<int(Rank&)>& body);

}  // namespace sftrun::engine
