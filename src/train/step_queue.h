#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sftrun/train/loss_scale.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/train/schedule.h"
#include "sftrun/train/step_numbers.h"
#include "sftrun/train/step_timer.h"
#include "sftrun/train/stragglers.h"
#include "sftrun/train/trainer_inputs.h"
#include "step_passes.h"
#include "step_report.h"

namespace sftrun::train {

/// Computes optimizer steps: forward, backward, reduction, update. On CUDA, with optimizers that
/// read a gate, a step is queued before the host has read the values of the previous step, and the
/// device decides about the update (docs/decisions/0021-one-delayed-read.md).
///
///     queue(step);                        at most two steps are queued
///     const QueuedStep queued = take();   the oldest
///     StepReport report = read(queued);   waits for the device
///     finish(queued, report);             unless the report is not finite
///
/// Every rank makes the same calls in the same order. Not thread-safe.
class StepQueue {
 public:
  /// Makes optimizer state.   @param inputs must outlive this object
  explicit StepQueue(const TrainerInputs& inputs);
  ~StepQueue();
  StepQueue(const StepQueue&) = delete;
  StepQueue& operator=(const StepQueue&) = delete;

  /// Queues the forward and backward pass, the gradient reduction and, if the device decides, the
  /// update. Does not wait for the device unless its queue is full.
  /// @param step counted from 0
  /// @param host_numbers called when the passes are queued: what the other ranks are told with the
  /// step, without `num_terms` and `work`
  /// @param on_prepared called when the step's batch is there
  /// @return 0, or the exit code of a stop before the step's batch was there: nothing is queued
  int queue(int64_t step, const std::function<HostNumbers()>& host_numbers,
            const std::function<void()>& on_prepared = {});
  size_t num_queued() const { return queued_.size(); }
  /// Whether a step may stay queued while the next one is.
  bool reads_later() const { return reads_later_; }
  /// @pre num_queued() > 0
  QueuedStep take();
  /// The values of the step, over all ranks. Names ranks that are slow. fp16: `skipped` is set, and
  /// the loss scale halved, if the gradients exceed its range.
  StepReport read(const QueuedStep& queued);
  /// Updates the weights, if the host decides and the step is not skipped, and measures the step.
  void finish(const QueuedStep& queued, StepReport& report);

  /// See StepPasses::try_longest.
  void try_longest(int64_t step);
  const StepPasses& passes() const { return passes_; }
  Optimizer& optimizer() { return *optimizer_; }
  /// Inactive unless the run computes in fp16.
  LossScale& loss_scale() { return loss_scale_; }
  /// Of the optimizer's state in device memory.
  uint64_t optimizer_bytes() const;
  /// Whether the learning rate is 0 in every step.
  bool learns_nothing() const;

 private:
  void queue_update(const QueuedStep& queued, int64_t num_losses);
  std::vector<RankNumbers> wait_for_numbers(int64_t step);
  void name_stragglers(const std::vector<RankNumbers>& ranks);
  bool overflows(const StepReport& report);
  /// false: weights wait in host memory, and the CPU updates them.
  bool updates_on_device() const;
  StepNumbers& numbers_of(int64_t step) { return numbers_[static_cast<size_t>(step % 2)]; }
  StepTimer& timer_of(int64_t step) { return timers_[static_cast<size_t>(step % 2)]; }

  const TrainerInputs& in_;
  Schedule schedule_;
  std::unique_ptr<Optimizer> optimizer_;
  LossScale loss_scale_;
  bool reads_later_;
  StepPasses passes_;
  at::Tensor gate_;                     // kernels::open_gate; undefined if the host decides
  std::array<StepNumbers, 2> numbers_;  // used alternately
  std::array<StepTimer, 2> timers_;     // likewise
  std::vector<QueuedStep> queued_;      // steps whose values were not read yet; at most two
  WorkMeter own_work_;
  StragglerWatch stragglers_;
};

}  // namespace sftrun::train
