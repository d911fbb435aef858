#include <cmath>
#include <utility>

#include "sftrun/config/best_metric.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/train/trainer.h"
#include "step_values.h"

/// Evaluations during training, the best checkpoint, early stopping.
namespace sftrun::train {

bool Trainer::evaluation_due(int64_t step, bool is_last) const {
  if (!evaluator_) return false;
  switch (in_.config.train.eval_strategy) {
    case config::EvalStrategy::kSteps:
      return is_last || (step + 1) % in_.config.train.eval_steps.value() == 0;
    case config::EvalStrategy::kEpoch:
      return is_last || in_.batches->ends_epoch(step);
    default:
      return false;
  }
}

/// The best evaluation so far, of the checkpoint from which the run is resumed.
void Trainer::prepare_best() {
  if (!best_.is_wanted()) {
    state_.best.reset();
    return;
  }
  if (state_.best && !best_.restore(*state_.best)) {
    log::warn(
        "the run was judged by {} before, and is by {} now: its best evaluation so far (step "
        "{}) does not count any more",
        state_.best->metric, best_.metric(), state_.best->step);
  }
  const int64_t step = best_.state().step;
  if (in_.config.train.load_best_model_at_end && step > 0 && step <= state_.step &&
      !leads_to_file(checkpoints_.path_of(step))) {
    log::warn(
        "the checkpoint of the best evaluation (step {}) is missing: the best is looked for "
        "among the evaluations from step {} on",
        step, state_.step + 1);
    best_.forget();
  }
  state_.best = best_.state();
  if (is_main()) require_complete_best();  // at the start of a resumed run, not hours later
}

namespace {

[[noreturn]] void throw_not_loadable(const std::filesystem::path& checkpoint,
                                     const DataError& error) {
  throw DataError(
      fmt::format("the best model cannot be loaded: {}", error.message()), checkpoint.string(),
      "restore the checkpoint from a copy, or rerun the same command with "
      "train.load_best_model_at_end=false: the result is then the model of the last step");
}

}  // namespace

/// @throws DataError if the checkpoint of the best evaluation is damaged
void Trainer::require_complete_best() const {
  const BestState* of = best();
  if (!in_.config.train.load_best_model_at_end || of == nullptr || of->step == state_.step) return;
  const std::filesystem::path checkpoint = checkpoints_.path_of(of->step);
  try {
    verify_checkpoint(checkpoint);
  } catch (const DataError& error) {
    throw_not_loadable(checkpoint, error);
  }
}

/// @throws ConfigError if no evaluation has the metric of the best one. The check of the
/// configuration knows all others, but not the names of the validation sets.
void Trainer::require_known_metric() const {
  const std::string& metric = best_.metric();
  constexpr std::string_view kEnd = "_loss";
  if (!best_.is_wanted() || !evaluator_ || metric == "eval_loss" || !metric.ends_with(kEnd)) return;
  const auto problem = config::problem_of_set_loss(metric, evaluator_->set_names());
  if (!problem) return;
  throw ConfigError(
      fmt::format("`train.metric_for_best_model` is {}, {}", excerpt(metric), problem->reason),
      "train.metric_for_best_model", problem->fix);
}

int64_t Trainer::num_evaluations() const {
  const int64_t steps = total_steps();
  if (!evaluator_ || steps == 0) return 0;
  return config::num_evaluations(in_.config.train, steps, epochs_of(steps).value_or(0));
}

std::optional<double> Trainer::epochs_of(int64_t steps) const {
  if (in_.config.data.streaming) return std::nullopt;
  return steps == 0 ? 0 : in_.batches->epochs_after(steps - 1);
}

const BestState* Trainer::best() const {
  return state_.best && state_.best->step > 0 ? &*state_.best : nullptr;
}

void Trainer::load_best() {
  const BestState* of = best();
  if (!in_.config.train.load_best_model_at_end || of == nullptr || of->step == state_.step) return;
  checkpoint_writer_.finish();
  const std::filesystem::path checkpoint = checkpoints_.path_of(of->step);
  try {
    if (is_main()) verify_checkpoint(checkpoint);
    restore_parameters(checkpoint, *in_.strategy);
  } catch (const DataError& error) {
    throw_not_loadable(checkpoint, error);
  }
  if (is_main())
    log::info("the result is the model after step {}, which has the best {}: {:.6g}", of->step,
              of->metric, *of->value);
}

/// Adds an evaluation to those that compete for the best.   @return whether it is the best so far
bool Trainer::note_best(const observe::EvalMetrics& metrics) {
  if (!best_.is_wanted() || metrics.step == 0) return false;
  const std::optional<double> value = metrics.value_of(best_.metric());
  if (!value && !std::isnan(metrics.eval_loss)) {
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

void Trainer::log_early_stop() const {
  const BestState& state = best_.state();
  const double threshold = in_.config.train.early_stopping_threshold;
  log::info("early stopping after step {}: {} did not improve{} in {}{}", state_.step, state.metric,
            threshold > 0 ? fmt::format(" by more than {:g}", threshold) : "",
            counted(state.num_worse, "evaluation"),
            state.value
                ? fmt::format("; the best is {:.6g} after step {}", *state.value, state.step)
                : "");
}

/// Answers for the validation prompts, if the run wants them and has the time.
AnswerEvaluation Trainer::answer_validation(int64_t steps_done) {
  if (!in_.hooks.answer_validation) return {};
  AnswerEvaluation answers = in_.hooks.answer_validation(
      steps_done,
      answer_seconds_allowed(in_.config.train, state_.trained_seconds, state_.answer_seconds));
  // An interrupted evaluation is repeated, and may then take as long as if it had not begun.
  if (answers.stop_exit_code == 0) state_.answer_seconds += answers.seconds;
  return answers;
}

/// @return false if the run was asked to stop meanwhile: the evaluation is repeated when the run
/// is resumed
bool Trainer::evaluate(int64_t steps_done) {
  state_.evaluation_due = true;
  if (stop_exit_code_ != 0) return false;
  const kernels::WorkRange evaluating(in_.hooks.activity, Work::kEvaluating);
  tell("evaluating", steps_done);
  const EvalResult result =
      evaluator_->run(*in_.decoder, *in_.strategy, objective_, *in_.comm, in_.hooks.stop_exit_code);
  stop_exit_code_ = result.stop_exit_code;
  AnswerEvaluation answers;
  if (stop_exit_code_ == 0) {
    answers = answer_validation(steps_done);
    stop_exit_code_ = answers.stop_exit_code;
  }
  tell("training", steps_done);
  if (stop_exit_code_ != 0) return false;
  state_.evaluation_due = false;
  if (!std::isfinite(result.loss)) {
    log::warn("step {}: the validation loss is not finite, while the training loss is; look at {}",
              steps_done,
              config::names_of(in_.config.data.val.empty() ? in_.config.data.train
                                                           : in_.config.data.val));
  }
  observe::EvalMetrics m;
  m.step = steps_done;
  m.eval_loss = result.loss;
  m.objective = result.metrics;
  m.losses = result.losses;
  if (objective_.info().is_cross_entropy) m.eval_perplexity = std::exp(result.loss);
  m.answers = answers.scores;
  m.eval_seconds = result.seconds;
  last_evaluation_ = m.to_json();
  const bool is_best = note_best(m);
  saves_best_ = is_best && in_.config.train.load_best_model_at_end;
  if (is_main()) log_evaluation(m, result, answers.samples, is_best);
  return true;
}

/// On rank 0.   @param samples Markdown; empty: none
void Trainer::log_evaluation(const observe::EvalMetrics& m, const EvalResult& result,
                             const std::string& samples, bool is_best) {
  const int64_t steps_done = m.step;
  metrics_.write(m);
  events_.scalar("eval/loss", m.eval_loss, steps_done);
  if (m.eval_perplexity) events_.scalar("eval/perplexity", *m.eval_perplexity, steps_done);
  for (const auto& [name, value] : m.objective) events_.scalar("eval/" + name, value, steps_done);
  for (const auto& [name, loss] : m.losses) events_.scalar("eval/loss/" + name, loss, steps_done);
  if (m.answers) {
    events_.scalar("eval/rouge1", m.answers->rouge1, steps_done);
    events_.scalar("eval/rouge2", m.answers->rouge2, steps_done);
    events_.scalar("eval/rouge_l", m.answers->rouge_l, steps_done);
    events_.scalar("eval/exact_match", m.answers->exact_match, steps_done);
  }
  if (!samples.empty()) events_.text("eval/answers", samples, steps_done);
  events_.flush();
  const config::ObjectiveInfo& objective = objective_.info();
  std::string line = fmt::format("step {}/{} eval_loss {:.4f}", steps_done,
                                 in_.batches->total_steps(), m.eval_loss);
  if (m.eval_perplexity) line += fmt::format(" perplexity {:.3f}", *m.eval_perplexity);
  if (const auto& [metric, word] = objective.shown; !metric.empty())
    line += fmt::format(" {} {:.3f}", word, value_of(m.objective, metric).value_or(0));
  line += fmt::format(" ({}, {})", counted(result.num_terms, objective.term_word()),
                      format_duration(result.seconds));
  if (const auto accuracy = value_of(m.objective, "token_accuracy"))
    line += fmt::format(" eval_token_accuracy {:.4f}", *accuracy);
  if (m.answers) {
    line += fmt::format(" eval_rouge_l {:.4f} eval_exact_match {:.4f} ({}, {})", m.answers->rouge_l,
                        m.answers->exact_match, counted(m.answers->num_answers, "answer"),
                        format_duration(m.answers->seconds));
  }
  log::info("{}{}", line, is_best ? fmt::format(", the best {} so far", best_.metric()) : "");
  for (const auto& [name, loss] : m.losses) log::info("  {}: eval_loss {:.4f}", name, loss);
  in_.hooks.on_run_event({"evaluation", steps_done, last_evaluation_});
}

}  // namespace sftrun::train
