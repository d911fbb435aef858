#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/observe/metrics.h"
#include "sftrun/parallel/mesh.h"
#include "sftrun/train/batches.h"
#include "sftrun/train/step_numbers.h"

/// What one step gave, over all ranks.
namespace sftrun::train {

/// A step that was queued on the device and whose values were not read yet.
struct QueuedStep {
  int64_t step = 0;  ///< counted from 0
  data::StepBatch batch;
  double started_s = 0;         ///< on the monotonic clock
  double prepared_seconds = 0;  ///< until the step had its batch
  double learning_rate = 0, loss_scale = 1;
  double epochs = 0;                      ///< epochs of data after this step
  std::vector<std::string> metric_names;  ///< of the objective
};

/// What the sums of a step are divided by, over all ranks.
struct StepDivisors {
  double num_terms = 1;                     ///< of the objective
  std::optional<double> num_micro_batches;  ///< nullopt: there is no load-balancing loss
};

/// A micro-batch of a step.
struct MicroBatchPlace {
  int64_t micro_step = 0;
  int dp_rank = 0;
};

struct StepReport {
  double loss = 0, grad_norm = 0, seconds = 0;
  std::optional<double> aux_loss;           ///< mean over all micro-batches
  observe::NamedValues objective;           ///< means that the objective reports
  std::vector<double> loss_per_rank;        ///< mean over the terms of each rank; NaN: it has none
  std::vector<uint64_t> peak_memory_bytes;  ///< per rank
  std::vector<double> gpu_utilization;      ///< per rank; empty if a rank has no reading
  std::vector<uint64_t> memory_used_bytes;  ///< per rank
  std::vector<double> cpu_utilization;      ///< per rank
  std::optional<observe::StepParts> parts;  ///< of this rank
  std::optional<double> loss_scale;         ///< fp16: of the next step
  bool skipped = false;  ///< fp16: gradients were not finite, so no weight was changed
  std::optional<MicroBatchPlace> not_finite_at;  ///< of the first rank with a non-finite loss

  // What the ranks agree on.
  int stop_exit_code = 0;          ///< the largest of all ranks
  bool save_due = false;           ///< by rank 0's clock
  bool all_parts_written = false;  ///< see CheckpointWriter::note_parts

  bool is_finite() const;
};

/// Without the time of the step, and without what fp16 adds.   @param ranks values by rank
StepReport report_of(const std::vector<RankNumbers>& ranks, const parallel::Mesh& mesh,
                     const QueuedStep& queued, const StepDivisors& divisors);

/// The error of a step that is not finite. It names the records of the micro-batch where that
/// appeared, else of the whole batch: "a.jsonl, lines 3, 4; b.csv, row 7".
/// @param report not finite   @param micro_batch_size packed sequences
/// @param newest_saved what the run can go back to, as words
Error not_finite_error(const StepReport& report, const QueuedStep& queued, const Batches& batches,
                       const parallel::Mesh& mesh, int64_t micro_batch_size,
                       const std::string& newest_saved);

}  // namespace sftrun::train
