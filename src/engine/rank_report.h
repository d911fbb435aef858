#pragma once

#include <vector>

#include "sftrun/observe/run_report.h"
#include "sftrun/parallel/communicator.h"

namespace sftrun::engine {

/// The entry of each rank in run.json. A collective: every rank calls it.
/// @param own memory of this rank   @param model_file_bytes that this rank read
std::vector<observe::RankReport> gather_rank_reports(parallel::Communicator& comm,
                                                     const observe::RankBytes& own,
                                                     uint64_t model_file_bytes);

}  // namespace sftrun::engine
