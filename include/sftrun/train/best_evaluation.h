#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"

/// The best evaluation of a run, and when to stop early. The rules are those of transformers'
/// Trainer (`_determine_best_metric`) and its EarlyStoppingCallback.
namespace sftrun::train {

/// Seconds that the answers of an evaluation may take: one minute and a share of the training time
/// (`train.generation_time_budget`), without what earlier answers took. Infinite without a limit,
/// and where the best evaluation is that of the best answers.
double answer_seconds_allowed(const config::TrainConfig& config, double trained_s, double spent_s);

/// What later decisions depend on. Checkpoints hold it.
struct BestState {
  std::string metric;  ///< which evaluations were compared
  bool greater_is_better = false;
  int64_t num_evaluations = 0;
  std::optional<double> value;  ///< the best; nullopt: none was a number
  int64_t step = 0;             ///< of the best; 0: there is none
  int64_t num_worse = 0;        ///< evaluations in a row without an improvement

  bool operator==(const BestState&) const = default;
};

class BestEvaluation {
 public:
  explicit BestEvaluation(const config::TrainConfig& config);

  /// Whether anything depends on the best evaluation.
  bool is_wanted() const { return is_wanted_; }
  const std::string& metric() const { return state_.metric; }
  /// @param value of `metric()`, which may be NaN   @param step above 0
  /// @return whether it is better than all before
  bool add(double value, int64_t step);
  /// Early stopping: `train.early_stopping_patience` evaluations in a row were no improvement.
  bool should_stop() const;
  const BestState& state() const { return state_; }
  /// Goes on from a checkpoint.
  /// @return false if it compared by another metric, and nothing is restored
  bool restore(const BestState& state);
  /// Forgets the best, but not the evaluations without an improvement.
  void forget();

 private:
  bool is_better(double value) const;

  bool is_wanted_;
  std::optional<int64_t> patience_;
  double threshold_;
  BestState state_;
};

}  // namespace sftrun::train
