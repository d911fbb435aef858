#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "run_log.h"
#include "sftrun/observe/metrics.h"
#include "sftrun/train/best_evaluation.h"
#include "sftrun/train/evaluation.h"
#include "sftrun/train/objective.h"
#include "sftrun/train/trainer_inputs.h"

namespace sftrun::train {

/// The evaluations during a run: when they are due, the best one, and early stopping. Every rank
/// makes the same calls in the same order. Not thread-safe.
class Evaluations {
 public:
  /// @param state of the run: `evaluation_due`, `best` and `answer_seconds` are kept there
  /// The arguments must outlive this object.
  /// @throws ConfigError if `train.metric_for_best_model` is the loss of a set that does not exist:
  /// the check of the configuration does not know the names of the sets
  Evaluations(const TrainerInputs& inputs, TrainState& state, const Objective& objective,
              RunLog& log);

  /// Goes on from `state`, which may be a checkpoint's. Warns, on all ranks, of a best evaluation
  /// that does not count any more.
  /// @throws DataError on rank 0 if the checkpoint of the best evaluation is damaged
  void start();
  /// Whether there are validation data.
  bool has_data() const { return in_.val != nullptr; }
  /// @param step counted from 0   @param is_last of the run
  bool is_due(int64_t step, bool is_last) const;
  /// What a run of so many steps has, without the one before the first step.
  /// @param epochs that they are; 0: unknown
  int64_t count(int64_t steps, double epochs) const;

  struct Outcome {
    /// Not 0: the run was asked to stop meanwhile, so that the evaluation is repeated when it is
    /// resumed.
    int stop_exit_code = 0;
    bool asks_for_checkpoint = false;  ///< it is the best, and the run shall end with the best
  };
  /// Evaluates after the steps of `state`.
  Outcome run();

  /// Early stopping.
  bool should_stop() const { return best_.should_stop(); }
  void log_early_stop() const;
  /// The best evaluation so far; nullptr: the run does not look for it, or there is none.
  const BestState* best() const;
  /// The line of metrics.jsonl of the last evaluation of this process; null: there was none.
  const nlohmann::ordered_json& last() const { return last_; }
  /// Whether the parameters of the best evaluation are others than those of the last step, and the
  /// run shall end with them.
  bool wants_best_loaded() const;
  /// Loads the parameters of the best evaluation.   @pre wants_best_loaded(), and its checkpoint is
  /// complete   @throws DataError if it is missing or damaged
  void load_best();

 private:
  void require_known_metric() const;
  void require_complete_best() const;
  AnswerEvaluation answer_validation();
  observe::EvalMetrics metrics_of(const EvalResult& result, const AnswerEvaluation& answers) const;
  bool add_to_best(const observe::EvalMetrics& metrics);

  const TrainerInputs& in_;
  TrainState& state_;
  const Objective& objective_;
  RunLog& log_;
  std::optional<Evaluator> evaluator_;  // nullopt: validation data are prompts, which have no loss
  BestEvaluation best_;
  CheckpointStore checkpoints_;
  nlohmann::ordered_json last_;
};

}  // namespace sftrun::train
