#pragma once

#include <cstdint>
#include <string>

#include "sftrun/observe/metrics.h"
#include "sftrun/observe/progress.h"
#include "sftrun/observe/tensorboard.h"
#include "sftrun/train/trainer_inputs.h"
#include "step_report.h"

namespace sftrun::train {

/// Tells of a run while it trains: every rank its launcher (`Hooks::on_event`), rank 0 also the
/// log, metrics.jsonl, TensorBoard and the user's command (`Hooks::on_run_event`). Not thread-safe.
class RunLog {
 public:
  /// @param inputs must outlive this object
  explicit RunLog(const TrainerInputs& inputs);

  /// On rank 0: opens the files. What they say of steps after `state` is removed, and the evaluation
  /// after its step if that is due again.
  /// @throws DataError for a line before them that is none of a metrics file
  void open(const TrainState& state);
  /// @param phase see TrainEvent; it keeps the figures of the last step   @param steps_done of the run
  void tell(const char* phase, int64_t steps_done);
  /// The next event has these figures of this rank.
  void note(const HostNumbers& numbers);
  void add_step(const QueuedStep& queued, const StepReport& report);
  /// On rank 0.   @param samples answers as Markdown; empty: none
  /// @param best_metric by which it is the best so far; empty: it is not
  void add_evaluation(const observe::EvalMetrics& metrics, const EvalResult& result,
                      const AnswerEvaluation& answers, const std::string& best_metric);
  /// The lines of metrics.jsonl are on the disk.
  void sync() { metrics_.sync(); }

 private:
  observe::TrainMetrics metrics_of(const QueuedStep& queued, const StepReport& report) const;
  void warn_of_server(int64_t done, const observe::NamedValues& objective);
  void write_events(const observe::TrainMetrics& metrics);
  void write_events(const observe::EvalMetrics& metrics, const std::string& samples);
  std::string line_of(const observe::EvalMetrics& metrics, const EvalResult& result) const;
  std::string line_of_rewards(const observe::EvalMetrics& metrics,
                              const AnswerEvaluation& answers) const;

  const TrainerInputs& in_;
  observe::MetricsWriter metrics_;  // closed on other ranks than 0, as is `events_`
  observe::EventWriter events_;
  observe::ProgressMeter progress_;
  TrainEvent event_;            // the last one
  bool is_server_far_ = false;  // which was said
};

}  // namespace sftrun::train
