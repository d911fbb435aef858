#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/activity.h"
#include "sftrun/data/dataset.h"
#include "sftrun/model/decoder.h"
#include "sftrun/observe/metrics.h"
#include "sftrun/observe/progress.h"
#include "sftrun/observe/tensorboard.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/strategy.h"
#include "sftrun/train/batches.h"
#include "sftrun/train/best_evaluation.h"
#include "sftrun/train/checkpoint.h"
#include "sftrun/train/checkpoint_writer.h"
#include "sftrun/train/evaluation.h"
#include "sftrun/train/loss_scale.h"
#include "sftrun/train/micro_batch_schedule.h"
#include "sftrun/train/objective.h"
#include "sftrun/train/optimizer.h"
#include "sftrun/train/schedule.h"
#include "sftrun/train/step_numbers.h"
#include "sftrun/train/step_profiler.h"
#include "sftrun/train/step_timer.h"
#include "sftrun/train/stragglers.h"

/// The training loop. On CUDA, with optimizers that support a gate, a step is queued before the
/// host has read the values of the previous step (docs/decisions/0021-one-delayed-read.md).
namespace sftrun::train {

/// Progress that the loop reports through `Hooks::on_event`.
struct TrainEvent {
  /// "loading", "tokenizing", "fitting", "training", "evaluating", "saving"
  const char* phase = "training";
  int64_t step = 0, total_steps = 0;
  std::optional<double> loss, tokens_per_second, eta_s;
  std::optional<uint64_t> memory_bytes;  ///< the peak so far
  std::optional<uint64_t> memory_used_bytes;
  std::optional<double> gpu_percent, cpu_percent;
};
/// What a command of `callbacks` may be started for.
struct RunEvent {
  const char* name = "";  ///< "checkpoint", "evaluation"
  int64_t step = 0;
  nlohmann::ordered_json details = nlohmann::ordered_json::object();
};
struct Hooks {
  std::function<int()> stop_exit_code = [] {
    return 0;
  };  ///< not 0: write a checkpoint and stop with this code, after the queued steps
  std::function<void(const TrainEvent&)> on_event = [](const TrainEvent&) {};
  std::function<uint64_t()> peak_memory_bytes = [] { return uint64_t{0}; };
  /// Utilisation of this rank's GPU in percent; nullopt without a GPU or without a reading.
  std::function<std::optional<double>()> gpu_utilization = [] { return std::nullopt; };
  /// Memory in use now: of the GPU, by all processes; resident on a CPU.
  std::function<uint64_t()> memory_used_bytes = [] { return uint64_t{0}; };
  /// Percent of one processor that this rank used since the last call.
  std::function<double()> cpu_utilization = [] { return 0.0; };
  /// Called if the first step of a run is not finite, to check the base weights. It may throw a
  /// more specific error.
  std::function<void()> look_at_base = [] {};
  /// Answers the validation prompts after `step` steps and scores the answers; empty: no answers.
  /// All ranks call it.   @param allowed_s seconds that it may take; infinite: no limit
  std::function<AnswerEvaluation(int64_t step, double allowed_s)> answer_validation;
  /// Called on rank 0, perhaps by another thread.
  std::function<void(const RunEvent&)> on_run_event = [](const RunEvent&) {};
  Activity* activity = nullptr;  ///< records what the loop does; may be null
};

struct TrainerInputs {
  config::RunConfig config;  ///< resolved
  std::filesystem::path run_dir;
  model::Decoder* decoder = nullptr;
  parallel::Communicator* comm = nullptr;
  parallel::Strategy* strategy = nullptr;  ///< of the decoder's parameters
  Batches* batches = nullptr;
  int local_world_size = 1;            ///< ranks on this machine
  const data::Dataset* val = nullptr;  ///< null: no evaluation
  Build build;                         ///< of this program; the trainer sets its `from_step`
  nlohmann::ordered_json identity;
  int64_t rendered_at_unix_s = 0;                 ///< see TrainState
  std::optional<weights::AdapterConfig> adapter;  ///< set when an adapter is trained
  /// Chat template of the run, which checkpoints hold; nullopt: the model's own.
  std::optional<std::string> chat_template;
  nlohmann::ordered_json template_variables;  ///< of the run, which checkpoints hold, too
  std::optional<std::filesystem::path> resume_from;
  StepRange profiled_steps = {};     ///< of which profile/ gets traces
  bool longest_batch_first = false;  ///< train.longest_batch_first, resolved
  Hooks hooks;
};

struct TrainOutcome {
  int exit_code = 0;  ///< 0: finished; 75 or 130: stopped on request, after writing a checkpoint
  int64_t first_step = 0, last_step = 0;
  bool was_complete = false;  ///< the run had ended before
};

class Trainer {
 public:
  /// No collective.
  /// @throws Interrupted while the tensors of a checkpoint are read
  explicit Trainer(TrainerInputs inputs);
  ~Trainer();
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
  bool is_complete() const { return state_.step >= total_steps() || best_.should_stop(); }
  /// Whether the learning rate is 0 in every step.
  bool learns_nothing() const;
  /// The best evaluation so far; nullptr: the run does not look for it, or there is none.
  const BestState* best() const;
  /// The builds of this program that computed the run's steps.
  const std::vector<Build>& builds() const { return state_.builds; }
  /// The line of metrics.jsonl of the last evaluation of this process; null: there was none.
  const nlohmann::ordered_json& last_evaluation() const { return last_evaluation_; }
  /// After the last step: goes back to the parameters of the best evaluation, if the run shall end
  /// with them (`train.load_best_model_at_end`).
  /// @throws DataError if its checkpoint is missing or damaged
  void load_best();

 private:
  void open_run_directory();
  void warn_of_unprofiled_steps() const;
  bool is_resumed_in_place() const;
  struct QueuedStep;
  struct StepReport;
  void queue_step(int64_t step);
  void queue_update(const QueuedStep& queued, const StepSums& sums);
  void try_longest_batch();
  StepWork work_of(const data::StepBatch& global_batch, int64_t step) const;
  StepSums forward_backward(const data::StepBatch& global_batch, int64_t step);
  void finish_steps(size_t left_queued);
  void finish_before_error();
  StepReport finish_step(const QueuedStep& queued);
  StepReport read(const QueuedStep& queued);
  std::vector<RankNumbers> wait_for_numbers(int64_t step);
  StepNumbers& numbers_of(int64_t step) { return numbers_[static_cast<size_t>(step % 2)]; }
  StepTimer& timer_of(int64_t step) { return timers_[static_cast<size_t>(step % 2)]; }
  int64_t first_bin(int64_t micro_step, int dp_rank) const;
  int64_t not_finite_at(const RankNumbers& numbers, int dp_rank) const;
  bool overflows(const StepReport& report);
  double aux_coef() const;  // of the routers' load-balancing loss; 0: no such loss
  double num_micro_batches(const data::StepBatch& global_batch) const;
  int64_t num_terms(const data::StepBatch& global_batch) const;
  void require_finite(const StepReport& report, const data::StepBatch& global_batch,
                      int64_t step) const;
  std::string records_of(const data::StepBatch& global_batch, int64_t first, int64_t end) const;
  void require_finite_state(int64_t steps_done);
  std::string newest_saved() const;
  void tell(const char* phase, int64_t steps_done);
  void log_step(const QueuedStep& queued, const StepReport& report);
  void note_build();
  void prepare_best();
  void require_known_metric() const;
  bool evaluate(int64_t steps_done);
  AnswerEvaluation answer_validation(int64_t steps_done);
  void require_complete_best() const;
  bool note_best(const observe::EvalMetrics& metrics);
  void log_evaluation(const observe::EvalMetrics& metrics, const EvalResult& result,
                      const std::string& samples, bool is_best);
  void log_early_stop() const;
  bool has_room_to_hold(const CheckpointContents& contents);
  bool saves_in_background(const CheckpointContents& contents, bool is_last);
  CheckpointToWrite checkpoint_now();
  void save(int64_t steps_done, bool is_last);
  bool evaluation_due(int64_t step, bool is_last) const;
  bool save_due(int64_t step) const;
  WorkSeconds work_of_step();
  HostNumbers host_numbers(const StepSums& sums);
  void write_metrics(const observe::TrainMetrics& m);
  void name_stragglers(const std::vector<RankNumbers>& ranks);
  bool is_main() const { return in_.comm->rank() == 0; }
  /// false: weights wait in host memory, and the CPU updates them.
  bool updates_on_device() const;

  TrainerInputs in_;
  Schedule schedule_;
  Objective objective_;
  std::unique_ptr<Optimizer> optimizer_;
  LossScale loss_scale_;
  /// The host reads a step's values while the next step is queued; the device decides about the
  /// update.
  bool reads_later_;
  std::unique_ptr<MicroBatchSchedule> micro_batches_;
  at::Tensor gate_;                     // kernels::open_gate; undefined if the host decides
  std::array<StepNumbers, 2> numbers_;  // used alternately
  std::array<StepTimer, 2> timers_;     // likewise
  std::vector<QueuedStep> queued_;      // steps whose values were not read yet; at most two
  std::optional<Evaluator> evaluator_;
  BestEvaluation best_;
  bool saves_best_ = false;  // the last evaluation was the best, and asks for a checkpoint
  nlohmann::ordered_json last_evaluation_;
  CheckpointStore checkpoints_;
  CheckpointWriter checkpoint_writer_;
  StepProfiler profiler_;
  observe::MetricsWriter metrics_;
  observe::EventWriter events_;
  observe::ProgressMeter progress_;
  TrainOutcome outcome_;
  TrainState state_;
  double save_every_s_ = 0;
  double last_save_s_ = 0;    // time of the last save, on the monotonic clock
  int64_t resumed_step_ = 0;  // step of the checkpoint that the run started from; 0: none
  bool told_no_room_ = false;
  int stop_exit_code_ = 0;    // the largest of all ranks, in the steps read so far
  bool save_wanted_ = false;  // rank 0's save timer expired since the last save
  StragglerWatch stragglers_;
  WorkSeconds work_before_{};  // of this rank, until the last step
  TrainEvent event_;           // last event; a new phase keeps the figures of the last step
};

}  // namespace sftrun::train
