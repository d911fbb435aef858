#include "evaluations.h"

#include <cmath>

#include "sftrun/config/best_metric.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/kernels/profile_range.h"
#include "step_values.h"

namespace sftrun::train {
namespace {

/// The mean cross-entropy of the labels.   @pre the objective predicts them
double cross_entropy_of(const EvalResult& result, const config::ObjectiveInfo& objective) {
  for (const auto& [name, mean] : result.metrics)
    if (name == objective.cross_entropy_metric()) return mean;
  return result.loss;
}

[[noreturn]] void throw_not_loadable(const std::filesystem::path& checkpoint,
                                     const DataError& error) {
  throw DataError(
      fmt::format("the best model cannot be loaded: {}", error.message()), checkpoint.string(),
      "restore the checkpoint from a copy, or rerun the same command with "
      "train.load_best_model_at_end=false: the result is then the model of the last step");
}

}  // namespace

Evaluations::Evaluations(const TrainerInputs& inputs, TrainState& state, const Objective& objective,
                         RunLog& log)
    : in_(inputs),
      state_(state),
      objective_(objective),
      log_(log),
      best_(in_.config.train),
      checkpoints_(in_.run_dir / "checkpoints") {
  if (in_.val != nullptr && !in_.config.train.has_rollouts())
    evaluator_.emplace(in_.config, *in_.val, in_.bin_cost);
  require_known_metric();
}

void Evaluations::require_known_metric() const {
  const std::string& metric = best_.metric();
  constexpr std::string_view kBefore = "eval_", kEnd = "_loss";
  if (!best_.is_wanted() || !evaluator_ || metric == "eval_loss" || !metric.ends_with(kEnd)) return;
  if (objective_.info().has_metric(metric.substr(kBefore.size()))) return;
  const auto problem = config::problem_of_set_loss(metric, evaluator_->set_names());
  if (!problem) return;
  throw ConfigError(
      fmt::format("`train.metric_for_best_model` is {}, {}", excerpt(metric), problem->reason),
      "train.metric_for_best_model", problem->fix);
}

void Evaluations::start() {
  state_.evaluation_due = state_.evaluation_due && has_data();
  if (!best_.is_wanted()) {
    state_.best.reset();
    return;
  }
  if (state_.best && !best_.restore(*state_.best)) {
    log::warn(
        "the metric for the best model was {}, now it is {}: the best evaluation so far (step {}) "
        "no longer counts",
        state_.best->metric, best_.metric(), state_.best->step);
  }
  const int64_t step = best_.state().step;
  if (in_.config.train.load_best_model_at_end && step > 0 && step <= state_.step &&
      !leads_to_file(checkpoints_.path_of(step))) {
    log::warn(
        "the checkpoint of the best evaluation (step {}) is missing: only evaluations from step {} "
        "on are compared",
        step, state_.step + 1);
    best_.forget();
  }
  state_.best = best_.state();
  if (in_.is_main()) require_complete_best();  // at the start of a resumed run, not hours later
}

void Evaluations::require_complete_best() const {
  if (!wants_best_loaded()) return;
  const std::filesystem::path checkpoint = checkpoints_.path_of(best()->step);
  try {
    verify_checkpoint(checkpoint);
  } catch (const DataError& error) {
    throw_not_loadable(checkpoint, error);
  }
}

bool Evaluations::is_due(int64_t step, bool is_last) const {
  if (!has_data()) return false;
  switch (in_.config.train.eval_strategy) {
    case config::EvalStrategy::kSteps:
      return is_last || (step + 1) % in_.config.train.eval_steps.value() == 0;
    case config::EvalStrategy::kEpoch:
      return is_last || in_.batches->ends_epoch(step);
    default:
      return false;
  }
}

int64_t Evaluations::count(int64_t steps, double epochs) const {
  if (!has_data() || steps == 0) return 0;
  return config::num_evaluations(in_.config.train, steps, epochs);
}

Evaluations::Outcome Evaluations::run() {
  const kernels::WorkRange evaluating(in_.hooks.activity, Work::kEvaluating);
  log_.tell("evaluating", state_.step);
  EvalResult result{.loss = kNoLoss};
  if (evaluator_)
    result = evaluator_->run(*in_.decoder, *in_.strategy, objective_, *in_.comm,
                             in_.hooks.stop_exit_code);
  AnswerEvaluation answers;
  if (result.stop_exit_code == 0) answers = answer_validation();
  log_.tell("training", state_.step);
  if (result.stop_exit_code != 0) return {.stop_exit_code = result.stop_exit_code};
  if (answers.stop_exit_code != 0) return {.stop_exit_code = answers.stop_exit_code};
  state_.evaluation_due = false;
  if (evaluator_ && !std::isfinite(result.loss)) {
    log::warn("step {}: the validation loss is not finite, while the training loss is; look at {}",
              state_.step,
              config::names_of(in_.config.data.val.empty() ? in_.config.data.train
                                                           : in_.config.data.val));
  }
  const observe::EvalMetrics metrics = metrics_of(result, answers);
  last_ = metrics.to_json();
  const bool is_best = add_to_best(metrics);
  if (in_.is_main()) log_.add_evaluation(metrics, result, answers, is_best ? best_.metric() : "");
  return {.asks_for_checkpoint = is_best && in_.config.train.load_best_model_at_end};
}

/// Answers for the validation prompts, if the run wants them and has the time.
AnswerEvaluation Evaluations::answer_validation() {
  if (!in_.hooks.answer_validation) return {};
  AnswerEvaluation answers = in_.hooks.answer_validation(
      state_.step,
      answer_seconds_allowed(in_.config.train, state_.trained_seconds, state_.answer_seconds),
      evaluator_ ? evaluator_->lost() : std::set<int64_t>());
  // An interrupted evaluation is repeated, and may then take as long as if it had not begun.
  if (answers.stop_exit_code == 0) state_.answer_seconds += answers.seconds;
  return answers;
}

observe::EvalMetrics Evaluations::metrics_of(const EvalResult& result,
                                             const AnswerEvaluation& answers) const {
  observe::EvalMetrics m;
  m.step = state_.step;
  m.eval_loss = result.loss;
  m.objective = result.metrics;
  m.losses = result.losses;
  if (!evaluator_) {
    m.has_loss = false;
    m.objective = answers.rewards;
    m.eval_seconds = answers.seconds;
    return m;
  }
  if (objective_.info().predicts_labels())
    m.eval_perplexity = std::exp(cross_entropy_of(result, objective_.info()));
  m.answers = answers.scores;
  m.eval_seconds = result.seconds;
  return m;
}

/// Adds an evaluation to those that compete for the best.   @return whether it is the best so far
bool Evaluations::add_to_best(const observe::EvalMetrics& metrics) {
  if (!best_.is_wanted() || metrics.step == 0) return false;
  const std::optional<double> value = metrics.value_of(best_.metric());
  if (!value && (!evaluator_ || !std::isnan(metrics.eval_loss))) {
    throw ConfigError(
        fmt::format("`train.metric_for_best_model` is {}, which the evaluation does not have",
                    best_.metric()),
        "train.metric_for_best_model",
        fmt::format("use one of {}", join(observe::names_of_values(metrics), ", ")));
  }
  const bool is_best = best_.add(value.value_or(kNoLoss), metrics.step);
  state_.best = best_.state();
  return is_best;
}

void Evaluations::log_early_stop() const {
  const BestState& state = best_.state();
  const double threshold = in_.config.train.early_stopping_threshold;
  log::info("early stopping after step {}: {} did not improve{} in {}{}", state_.step, state.metric,
            threshold > 0 ? fmt::format(" by more than {:g}", threshold) : "",
            counted(state.num_worse, "evaluation"),
            state.value
                ? fmt::format("; the best is {:.6g} after step {}", *state.value, state.step)
                : "");
}

const BestState* Evaluations::best() const {
  return state_.best && state_.best->step > 0 ? &*state_.best : nullptr;
}

bool Evaluations::wants_best_loaded() const {
  const BestState* of_run = best();
  return in_.config.train.load_best_model_at_end && of_run != nullptr &&
         of_run->step != state_.step;
}

void Evaluations::load_best() {
  const std::filesystem::path checkpoint = checkpoints_.path_of(best()->step);
  try {
    if (in_.is_main()) verify_checkpoint(checkpoint);
    restore_parameters(checkpoint, *in_.strategy);
  } catch (const DataError& error) {
    throw_not_loadable(checkpoint, error);
  }
  if (in_.is_main())
    log::info("the result is the model after step {}, which has the best {}: {:.6g}", best()->step,
              best()->metric, *best()->value);
}

}  // namespace sftrun::train
