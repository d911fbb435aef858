#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "answering_model.h"
#include "environment.h"
#include "held_failure.h"
#include "judging.h"
#include "prompt_task.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"
#include "sftrun/reward/rewards.h"
#include "sftrun/train/evaluation.h"
#include "sftrun/train/rollout_answers.h"
#include "sftrun/weights/peft.h"
#include "turn_writers.h"

namespace sftrun::engine {

/// Whether rewards can judge answers to all prompts of a run: each record has what its functions read.
/// @throws DataError naming the record, ConfigError for a setting that cannot be used here
void require_judgeable(const config::RunConfig& config, const data::Dataset& prompts);

/// Writes the answers of `train.rollouts`, and judges them. Each rank judges the answers that are dealt
/// to it. What is written depends only on weights, prompts, seed and step, and by rounding on the
/// number of ranks: a run that is resumed writes the same again.
class Rollouts {
 public:
  struct Inputs {
    TurnWriterInputs run;
    const data::Dataset& train;
    const data::Dataset* val;  ///< null: no evaluation
  };
  /// All of them must outlive this object.
  explicit Rollouts(const Inputs& inputs);

  /// Takes the memory of answers and gives it back.   @throws NoMemoryForAnswers   All ranks call it.
  void rehearse();
  /// Answers prompts of the training data, and keeps some answers of logged steps in the run directory.
  /// All ranks call it.
  train::Rollout write(int64_t step, const std::vector<int64_t>& prompts);
  /// Answers each prompt of the validation data once, always with the same random numbers.
  /// @param step steps that are done
  train::AnswerEvaluation evaluate(int64_t step);
  /// Ends what rewards and environment have started.
  void finish();
  /// Throws what a reward or the environment of this rank threw. `write` and `evaluate` then gave the
  /// exit code of a failure on every rank, so that a checkpoint could be written before.
  void throw_failure() const { failure_.throw_held(); }

 private:
  train::Rollout answer(PromptTask task);
  void keep_samples(PromptTask& task, const std::vector<JudgedAnswer>& all) const;

  Inputs in_;
  HeldFailure failure_;
  std::unique_ptr<TurnWriter> writer_;
  reward::Rewards rewards_;
  std::optional<Environment> environment_;
};

}  // namespace sftrun::engine
