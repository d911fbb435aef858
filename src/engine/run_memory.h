#pragma once

#include <vector>

#include "prepared_run.h"
#include "rank.h"
#include "sftrun/data/deal.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/plan/memory_plan.h"

/// The memory that a run is expected to need.
namespace sftrun::engine {

/// The devices of the run, without their memory. Before the data is read the sizes of its sequences
/// are unknown.
plan::RunDevices planned_devices(const PreparedRun& run, const Rank& rank);
/// What the fullest rank is expected to need with the longest micro-batch, by purpose.
observe::RankBytes planned_bytes(const PreparedRun& run, const Rank& rank);
/// Measures of packed sequences with images by which memory may be short: patches of the tower, and planned bytes of text model and tower
/// together. None for a run of texts.
std::vector<data::BinCost> memory_measures(const PreparedRun& run, const Rank& rank);
/// `train.longest_batch_first`. For `auto`: on a GPU; on a CPU where the plan takes more than half of
/// the memory.
bool tries_longest_batch(const PreparedRun& run, const Rank& rank);

}  // namespace sftrun::engine
