#pragma once

#include <cstddef>

#include "evaluations.h"
#include "run_log.h"
#include "saver.h"
#include "sftrun/train/step_profiler.h"
#include "sftrun/train/trainer.h"
#include "step_queue.h"

namespace sftrun::train {

/// The order of a run: steps, and between them evaluations, checkpoints and stops. Every rank has
/// the same order, because what it depends on travels with the values of the steps.
class TrainLoop {
 public:
  /// The arguments must outlive this object.
  TrainLoop(const TrainerInputs& inputs, TrainState& state, StepQueue& steps,
            Evaluations& evaluations, Saver& saver, RunLog& log);

  /// From the step of `state` to the end, or to the step after which a rank was asked to stop. A
  /// checkpoint is then complete.   @throws Error for a step that is not finite
  TrainOutcome run();

 private:
  void warn_of_unprofiled_steps() const;
  void begin();
  bool compute(int64_t step, bool is_read_at_once);
  HostNumbers host_numbers();
  void finish_steps(size_t left_queued);
  void finish_before_error();
  StepReport finish(const QueuedStep& queued);
  void require_finite(const StepReport& report, const QueuedStep& queued) const;
  void evaluate();
  void save(bool is_last);
  void save_before_stop();
  bool is_at_end() const;

  const TrainerInputs& in_;
  TrainState& state_;
  StepQueue& steps_;
  Evaluations& evaluations_;
  Saver& saver_;
  RunLog& log_;
  StepProfiler profiler_;
  TrainOutcome outcome_;
  int64_t saved_step_ = -1;   // of the last checkpoint of this start
  int stop_exit_code_ = 0;    // the largest of all ranks, in the steps read so far
  bool is_evaluated_ = true;  // false: the last evaluation was interrupted
  bool saves_best_ = false;   // the last evaluation was the best, and asks for a checkpoint
};

}  // namespace sftrun::train
