#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "sftrun/train/best_evaluation.h"
#include "sftrun/train/checkpoint.h"
#include "sftrun/train/trainer_inputs.h"

namespace sftrun::train {

class Evaluations;
class RunLog;
class Saver;
class StepQueue;

struct TrainOutcome {
  int exit_code = 0;  ///< 0: finished; 75 or 130: stopped on request, after writing a checkpoint
  int64_t first_step = 0, last_step = 0;
  bool was_complete = false;  ///< the run had ended before
};

/// Trains a run, from its start or from a checkpoint. It puts the parts together and answers what a
/// run is asked: `StepQueue` computes the steps, `Evaluations` and `Saver` what comes between them,
/// `RunLog` tells of both, and `TrainLoop` has their order (docs/decisions/0067-trainer.md).
class Trainer {
 public:
  /// Reads the checkpoint and prepares the run's directory. No collective.
  /// @throws Interrupted while the tensors of a checkpoint are read
  explicit Trainer(TrainerInputs inputs);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  TrainOutcome run();
  /// Of the optimizer's state in device memory.
  uint64_t optimizer_bytes() const;
  int64_t total_steps() const { return in_.batches->total_steps(); }
  /// Epochs that so many steps are; null: unknown, the data are streamed.
  std::optional<double> epochs_of(int64_t steps) const;
  /// Of the whole run, without the one before the first step.
  int64_t num_evaluations() const;
  /// Steps that are done.
  int64_t step() const { return state_.step; }
  /// Whether every step was done before, so that `run` trains nothing.
  bool is_complete() const;
  /// Records that lost their labels since this start, because their images or features could not be read (data.bad_records: skip).
  int64_t num_lost_records() const;
  /// Whether the learning rate is 0 in every step.
  bool learns_nothing() const;
  /// The best evaluation so far; nullptr: the run does not look for it, or there is none.
  const BestState* best() const;
  /// The builds of this program that computed the run's steps.
  const std::vector<Build>& builds() const { return state_.builds; }
  /// The line of metrics.jsonl of the last evaluation of this process; null: there was none.
  const nlohmann::ordered_json& last_evaluation() const;
  /// After the last step: goes back to the parameters of the best evaluation, if the run shall end
  /// with them (`train.load_best_model_at_end`).
  /// @throws DataError if its checkpoint is missing or damaged
  void load_best();

 private:
  void resume();
  void note_build();

  TrainerInputs in_;
  TrainState state_;
  std::unique_ptr<StepQueue> steps_;
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<Evaluations> evaluations_;
  std::unique_ptr<Saver> saver_;
};

}  // namespace sftrun::train
