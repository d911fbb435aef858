#pragma once

#include <cstdint>
#include <string>

#include "run_log.h"
#include "sftrun/train/checkpoint_writer.h"
#include "sftrun/train/trainer_inputs.h"
#include "step_queue.h"

namespace sftrun::train {

/// The checkpoints of a run: when they are due, what is in them, and how they are written. Every
/// rank makes the same calls in the same order. Not thread-safe.
class Saver {
 public:
  /// The timer of `train.save_every` begins now.
  /// @param state of the run, which checkpoints hold   @param steps whose optimizer they hold
  /// The arguments must outlive this object.
  Saver(const TrainerInputs& inputs, TrainState& state, StepQueue& steps, RunLog& log);

  /// Starts at the step of `state`. On rank 0: makes the folder, removes unfinished files of a run that
  /// crashed, and sets checkpoints of later steps aside.
  /// @throws DeviceError if nothing can be written there
  void start();
  /// By `train.save_steps` or epochs.   @param step counted from 0
  bool is_due(int64_t step) const;
  /// What this rank says of checkpoints with a step.
  /// @throws an error of the checkpoint that is being written
  void add_to(HostNumbers& numbers);
  /// What the ranks agree on.
  void note(const StepReport& report);
  /// Whether rank 0's timer has expired since the last checkpoint.
  bool timer_expired() const { return timer_expired_; }
  /// Whether the checkpoint from which the run was resumed is among its own, with this step.
  bool has_resumed_step() const;

  /// Writes a checkpoint of the state's step.
  /// @param is_last whether the run ends with it, so that nothing goes on while it is written
  /// @throws Error if weights or optimizer state are not finite: they are not saved
  void save(bool is_last);
  /// Waits until the checkpoint that was begun is complete.
  /// @throws an error of writing it
  void finish() { writer_.finish(); }
  /// What the run can go back to: "the newest checkpoint is of step 20".
  std::string newest_saved() const;

 private:
  void require_finite_state();
  bool has_room_to_hold(const CheckpointContents& contents) const;
  bool saves_in_background(const CheckpointContents& contents, bool is_last);
  CheckpointToWrite checkpoint_now();

  const TrainerInputs& in_;
  TrainState& state_;
  StepQueue& steps_;
  RunLog& log_;
  CheckpointStore store_;
  CheckpointWriter writer_;
  double every_s_;              // of the timer; 0: none
  double last_save_s_;          // on the monotonic clock
  int64_t first_step_ = 0;      // that `start` found
  bool timer_expired_ = false;  // rank 0's, since the last save
  bool has_told_of_no_room_ = false;
};

}  // namespace sftrun::train
