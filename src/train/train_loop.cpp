#include "train_loop.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "sftrun/core/log.h"

namespace sftrun::train {

TrainLoop::TrainLoop(const TrainerInputs& inputs, TrainState& state, StepQueue& steps,
                     Evaluations& evaluations, Saver& saver, RunLog& log)
    : in_(inputs),
      state_(state),
      steps_(steps),
      evaluations_(evaluations),
      saver_(saver),
      log_(log),
      profiler_(in_.profiled_steps, in_.run_dir / "profile", in_.comm->rank(), in_.device()) {}

TrainOutcome TrainLoop::run() {
  const int64_t total = in_.batches->total_steps();
  const WorkScope training(in_.hooks.activity, Work::kTraining);
  begin();
  outcome_.was_complete = is_at_end();
  for (int64_t step = state_.step; is_evaluated_ && step < total && !evaluations_.should_stop();
       ++step) {
    const bool last = step + 1 == total, evaluates = evaluations_.is_due(step, last),
               saves = last || saver_.is_due(step);
    if (!compute(step, /*is_read_at_once=*/evaluates || saves)) {
      save_before_stop();
      break;
    }
    if (evaluates) evaluate();
    const bool ends = is_evaluated_ && (last || evaluations_.should_stop());
    const bool stops = stop_exit_code_ != 0 && !ends;
    if (saves || ends || stops || saves_best_ || saver_.timer_expired())
      save(/*is_last=*/ends || stops);
    if (stops) break;
  }
  in_.hooks.throw_failure();
  if (!is_at_end()) outcome_.exit_code = stop_exit_code_;
  if (in_.is_main() && is_at_end() && state_.step < total) evaluations_.log_early_stop();
  log_.sync();
  profiler_.finish();
  if (in_.is_main()) steps_.passes().log_use();
  return outcome_;
}

/// What comes before the first step of this start of the run.
void TrainLoop::begin() {
  outcome_.first_step = outcome_.last_step = state_.step;
  log_.tell("training", state_.step);
  warn_of_unprofiled_steps();
  if (in_.longest_batch_first && !is_at_end()) {
    log_.tell("fitting", state_.step);
    steps_.try_longest(state_.step);
    log_.tell("training", state_.step);
  }
  const bool is_first =
      state_.step == 0 && evaluations_.has_data() && in_.config.train.eval_on_start;
  if (is_first || state_.evaluation_due) evaluate();
  // The best one needs a checkpoint of its step, which is mostly the one that the run came from.
  if (std::exchange(saves_best_, false) && !saver_.has_resumed_step()) save(/*is_last=*/false);
}

bool TrainLoop::is_at_end() const {
  return is_evaluated_ && (state_.step >= in_.batches->total_steps() || evaluations_.should_stop());
}

void TrainLoop::warn_of_unprofiled_steps() const {
  const StepRange& wanted = in_.profiled_steps;
  const int64_t total = in_.batches->total_steps();
  if (wanted.is_empty() || !in_.is_main()) return;
  if (wanted.first > state_.step && wanted.last <= total) return;
  log::warn("--profile {}-{}: this start of the run has steps {} to {}; others are not profiled",
            wanted.first, wanted.last, state_.step + 1, total);
}

/// @param is_read_at_once whether what follows needs the values of the step
/// @return false if the run was asked to stop before the step had its batch
bool TrainLoop::compute(int64_t step, bool is_read_at_once) {
  profiler_.begin(step + 1);
  try {
    // What writes the answers of a step tells of that, and not when the step goes on.
    const auto prepared = [this] {
      if (in_.config.train.has_rollouts()) log_.tell("training", state_.step);
    };
    if (const int code = steps_.queue(
            step, [this] { return host_numbers(); }, prepared)) {
      finish_steps(0);
      stop_exit_code_ = code;
      return false;
    }
  } catch (...) {
    finish_before_error();
    throw;
  }
  const bool stays_queued =
      steps_.reads_later() && !is_read_at_once && !profiler_.ends_with(step + 1);
  finish_steps(stays_queued ? 1 : 0);
  profiler_.end(step + 1);
  if (stop_exit_code_ != 0 || saver_.timer_expired()) finish_steps(0);
  return true;
}

HostNumbers TrainLoop::host_numbers() {
  HostNumbers numbers;
  numbers.peak_memory_bytes = static_cast<double>(in_.hooks.peak_memory_bytes());
  numbers.stop_exit_code = static_cast<double>(in_.hooks.stop_exit_code());
  numbers.gpu_utilization = in_.hooks.gpu_utilization().value_or(-1);
  numbers.memory_used_bytes = static_cast<double>(in_.hooks.memory_used_bytes());
  numbers.cpu_utilization = in_.hooks.cpu_utilization();
  saver_.add_to(numbers);
  log_.note(numbers);
  return numbers;
}

/// Reads the oldest queued steps until `left_queued` remain.
void TrainLoop::finish_steps(size_t left_queued) {
  while (steps_.num_queued() > left_queued) {
    const QueuedStep queued = steps_.take();
    const StepReport report = finish(queued);
    state_.step = outcome_.last_step = queued.step + 1;
    state_.tokens += queued.batch.tokens;
    state_.trained_seconds += report.seconds;
    log_.add_step(queued, report);
  }
}

/// An error while a step is queued may come from the previous step. Its values are read and checked
/// first; if they are finite they are logged. A lost device has no values to read.
void TrainLoop::finish_before_error() {
  try {
    finish_steps(0);
  } catch (const c10::Error&) {
  }
}

StepReport TrainLoop::finish(const QueuedStep& queued) {
  StepReport report = steps_.read(queued);
  saver_.note(report);
  stop_exit_code_ = std::max(stop_exit_code_, report.stop_exit_code);
  if (!report.skipped) require_finite(report, queued);  // before any weight moves
  steps_.finish(queued, report);
  return report;
}

void TrainLoop::require_finite(const StepReport& report, const QueuedStep& queued) const {
  if (report.is_finite()) return;
  if (queued.step == outcome_.first_step) in_.hooks.look_at_base();
  throw not_finite_error(report, queued, *in_.batches, in_.strategy->mesh(),
                         steps_.passes().micro_batch_size(), saver_.newest_saved());
}

/// An evaluation that a stop interrupts is repeated when the run is resumed.
void TrainLoop::evaluate() {
  state_.evaluation_due = true;
  if (stop_exit_code_ == 0) {
    const Evaluations::Outcome outcome = evaluations_.run();
    stop_exit_code_ = outcome.stop_exit_code;
    saves_best_ = outcome.asks_for_checkpoint;
  }
  is_evaluated_ = stop_exit_code_ == 0;
}

/// A stop before a step: what is done may be saved already.
void TrainLoop::save_before_stop() {
  const bool is_saved = state_.step == 0 || saved_step_ == state_.step || saver_.has_resumed_step();
  is_saved ? saver_.finish() : save(/*is_last=*/true);
}

void TrainLoop::save(bool is_last) {
  saver_.save(is_last);
  saved_step_ = state_.step;
  saves_best_ = false;
}

}  // namespace sftrun::train
