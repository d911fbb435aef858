#include "training.h"

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <utility>

#include "device_memory.h"
#include "disk_space.h"
#include "rank_report.h"
#include "report.h"
#include "result_card.h"
#include "rollouts.h"
#include "run_memory.h"
#include "run_messages.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/file.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/export/run_result.h"
#include "sftrun/kernels/cuda_device.h"
#include "sftrun/launch/gpu_meter.h"
#include "sftrun/launch/launch_plan.h"
#include "sftrun/observe/system.h"
#include "sftrun/train/run_directory.h"
#include "sftrun/train/stop_agreement.h"
#include "sftrun/train/trainer.h"
#include "trainer_setup.h"
#include "training_answers.h"

namespace sftrun::engine {
namespace {

void warn_of_pissa(const config::BaseRecord& base_record) {
  if (!base_record.pissa() || base_record.form.empty()) return;
  log::warn(
      "PiSSA changes the base weights, and the residual is quantised to {} and not saved: the "
      "saved adapter fits the original model only approximately (docs/lora-variants.md)",
      base_record.form);
}

/// What this rank's machine says while it trains.
class RankMeters {
 public:
  explicit RankMeters(at::Device device) : device_(device) {
    if (device.is_cuda()) gpu_.emplace(kernels::card_bus_id(device));
  }
  /// @pre this object outlives the hooks
  void add_to(train::Hooks& hooks) {
    hooks.gpu_utilization = [this] { return gpu_ ? gpu_->utilization_percent() : std::nullopt; };
    hooks.memory_used_bytes = [this] {
      if (!device_.is_cuda()) return observe::process_memory().resident_bytes;
      return (gpu_ ? gpu_->used_bytes() : std::nullopt)
          .value_or(tensor_memory(device_).allocated_bytes);
    };
    hooks.cpu_utilization = [this] { return cpu_.utilization_percent(); };
  }

 private:
  at::Device device_;
  std::optional<launch::GpuMeter> gpu_;
  observe::CpuMeter cpu_;
};

/// A prepared run from its trainer to its result.
class Training {
 public:
  Training(PreparedRun& run, Rank& rank)
      : run_(run), rank_(rank), device_(run.compute.device), meters_(device_) {}
  /// @return 0, or the exit code of a stop
  int run();

 private:
  train::TrainerInputs inputs();
  void require_space() const;
  int make_trainer();
  void begin_statements();
  void start_report();
  void write_report(const std::string& status);
  std::string card(int64_t trained_steps) const;
  void write_wanted_result(train::TrainOutcome& outcome);
  int write_result(int64_t last_step);
  void end_report(const train::TrainOutcome& outcome);
  void say_end(const train::TrainOutcome& outcome) const;
  void tell_of_commands(int64_t last_step) const;

  const config::BaseRecord* held() const { return base_record_ ? &*base_record_ : nullptr; }
  /// What the directory says of a complete run stays: this command may have other settings and data.
  bool keeps_statements() const { return !trains_ && earlier_; }

  PreparedRun& run_;
  Rank& rank_;
  at::Device device_;
  RankMeters meters_;
  std::unique_ptr<TrainingAnswers> answers_;
  std::unique_ptr<Rollouts> rollouts_;
  std::unique_ptr<OwnAnswers> own_answers_;
  std::optional<config::BaseRecord> base_record_;  // of an adapter's run
  std::optional<exporting::RunResult> result_;
  std::optional<train::Trainer> trainer_;
  std::optional<observe::RunReport> earlier_;
  observe::RunReport report_;
  uint64_t static_bytes_ = 0;  // of tensors before the trainer is made
  int64_t bins_in_epoch_ = 0;
  bool trains_ = true;  // not complete before
  bool works_ = true;   // it trains, or writes a result
};

int Training::run() {
  if (const int code = make_trainer()) return code;
  if (answers_) answers_->rehearse();
  if (rollouts_ && !trainer_->is_complete()) rollouts_->rehearse();
  if (own_answers_ && !trainer_->is_complete()) own_answers_->rehearse();
  begin_statements();
  start_report();
  train::TrainOutcome outcome = trainer_->run();
  if (rollouts_) rollouts_->finish();
  if (own_answers_) own_answers_->finish();
  write_wanted_result(outcome);
  end_report(outcome);
  rank_.comm().leave();
  if (rank_.is_main()) say_end(outcome);
  tell_of_commands(outcome.last_step);
  rank_.commands().finish();
  return outcome.exit_code;
}

train::TrainerInputs Training::inputs() {
  rollouts_ = rollouts_of(run_, rank_);  // gives the batches
  own_answers_ = own_answers_of(run_, rank_);
  train::TrainerInputs inputs = trainer_inputs(run_, rank_);
  inputs.longest_batch_first = tries_longest_batch(run_, rank_);
  if (inputs.longest_batch_first) inputs.tried_by = memory_measures(run_, rank_);
  meters_.add_to(inputs.hooks);
  answers_ = training_answers(run_, rank_);
  if (answers_) {
    inputs.hooks.answer_validation = [this](int64_t step, double allowed_s,
                                            const std::set<int64_t>& lost) {
      return answers_->evaluate(step, allowed_s, lost);
    };
  } else if (rollouts_) {
    inputs.hooks.answer_validation = [this](int64_t step, double, const std::set<int64_t>&) {
      return rollouts_->evaluate(step);
    };
  }
  if (rollouts_) inputs.hooks.throw_failure = [this] { rollouts_->throw_failure(); };
  if (own_answers_) inputs.hooks.throw_failure = [this] { own_answers_->throw_failure(); };
  rank_.start_commands(event_commands(run_.config, rank_));
  inputs.hooks.on_run_event = [this](const train::RunEvent& event) {
    rank_.commands().tell({event.name, event.step, event.details});
  };
  base_record_ = describe_adapter(run_, inputs);
  return inputs;
}

/// On rank 0.
void Training::require_space() const {
  // Unfinished files of a run that crashed take space that this run may need.
  train::CheckpointStore(run_.run_dir() / "checkpoints").remove_leftovers();
  require_disk_space(*result_, *run_.decoder, run_.config.train);
}

/// @return 0, or the exit code of a stop
int Training::make_trainer() {
  train::TrainerInputs inputs = this->inputs();
  if (held() != nullptr && rank_.is_main()) warn_of_pissa(*held());
  result_.emplace(exporting::RunResult{
      run_.run_dir(), inputs.adapter, *run_.checkpoint, run_.model_path, run_.compute.dtype,
      run_.chat_template, inputs.template_variables, inputs.image_caps, inputs.embedding});
  if (rank_.is_main()) require_space();
  reset_tensor_peak(device_);
  static_bytes_ =
      tensor_memory(device_).allocated_bytes + run_.strategy->stored_bytes().unallocated;
  if (run_.teacher) static_bytes_ += run_.teacher->model.strategy->stored_bytes().unallocated;
  bins_in_epoch_ = run_.data.batches->bins_in_epoch();
  // Reads a checkpoint's tensors, if the run resumes.
  return rank_.before_training([&] { trainer_.emplace(std::move(inputs)); });
}

/// The resolved configuration, and what the user is told before the first step.
void Training::begin_statements() {
  earlier_ = earlier_report(run_.run_dir(), run_.resume_from);
  trains_ = !trainer_->is_complete();
  if (!rank_.is_main()) return;
  if (!keeps_statements())
    write_file_atomically(run_.run_dir() / "config.resolved.yaml", config::to_yaml(run_.config));
  log_start(run_.config, *run_.decoder, run_.compute, held(),
            {.total_steps = trainer_->total_steps(),
             .num_evaluations = trainer_->num_evaluations(),
             .bins_in_epoch = bins_in_epoch_,
             .learns_nothing = trainer_->learns_nothing(),
             .asks_for_batch = run_.asks_for_batch});
}

void Training::start_report() {
  report_ = report_of_run({run_.config, run_.compute, run_.model_path, run_.base_fingerprint,
                           held(), run_.data.fingerprint, run_.identity, rank_.comm().backend(),
                           run_.strategy->name(), rank_.env().world_size});
  report_.planned = planned_bytes(run_, rank_);
  report_.builds = train::to_json(trainer_->builds());
  report_.first_step = report_.last_step = trainer_->step();
  if (earlier_) report_.evaluation = evaluation_until(*earlier_, trainer_->step());
  if (keeps_statements()) report_ = *earlier_;
  works_ = rank_.of_main(trains_ || !result_->exists() ? 1 : 0) != 0;
  if (!works_) return;
  report_.started_at = unix_seconds();
  write_report("running");
}

/// A collective.
void Training::write_report(const std::string& status) {
  report_.status = status;
  observe::RankBytes own =
      rank_bytes(run_.decoder->base_bytes(), run_.strategy->stored_bytes(),
                 trainer_->optimizer_bytes(), tensor_memory(device_).peak_bytes, static_bytes_);
  if (run_.teacher) own.base += run_.teacher->device_bytes();
  auto ranks = gather_rank_reports(rank_.comm(), own, run_.decoder->file_bytes());
  if (!keeps_statements()) report_.ranks = std::move(ranks);
  if (rank_.is_main()) observe::write_run_report(run_.run_dir() / "run.json", report_);
}

std::string Training::card(int64_t trained_steps) const {
  return card_text({.command = run_.config,
                    .trained = keeps_statements() ? trained_config(run_.config) : run_.config,
                    .result = *result_,
                    .base_record = held(),
                    .report = report_,
                    .best = trainer_->best(),
                    .trained_steps = trained_steps,
                    .total_steps = trainer_->total_steps(),
                    .epochs = trainer_->epochs_of(trained_steps),
                    .reads_images = run_.has_images,
                    .leaves_template_unused = run_.leaves_template_unused});
}

/// The result of a run that ended, unless it was there before. All ranks call it.
void Training::write_wanted_result(train::TrainOutcome& outcome) {
  bool is_wanted = outcome.exit_code == 0 && !(outcome.was_complete && result_->exists());
  is_wanted = rank_.of_main(is_wanted ? 1 : 0) != 0;  // it writes
  rank_.activity().set_work(Work::kExporting);
  if (!is_wanted) return;
  if (rank_.is_main() || run_.strategy->divides_parameters())
    outcome.exit_code = write_result(outcome.last_step);
  rank_.comm().barrier("result");  // it may take long
  outcome.exit_code = rank_.of_main(outcome.exit_code);
}

/// Writes the result, on rank 0: the best model or the last one. The other ranks call it too if they
/// have parts of the parameters. A stop interrupts it between two tensors: the same command writes it
/// from the last checkpoint.
/// @return 0, or the exit code of a stop
int Training::write_result(int64_t last_step) {
  parallel::Communicator alone;
  train::StopAgreement stop(run_.strategy->divides_parameters() ? rank_.comm() : alone,
                            [&] { return rank_.stop_exit_code(); });
  try {
    const Interruptible scope(launch::stop_requested);
    trainer_->load_best();
  } catch (const Interrupted&) {  // perhaps on this rank alone
  }
  if (stop.next() != 0) return stop.agreed();
  auto tensors = exporting::result_tensors(
      *result_, *run_.decoder,
      [&](const layers::Parameter& parameter) { return run_.strategy->master_of(parameter); });
  for (weights::TensorToWrite& tensor : tensors) {
    tensor.produce = [&stop, produce = std::move(tensor.produce)](void* destination) {
      if (stop.next() != 0) throw Interrupted();
      produce(destination);
    };
  }
  try {
    if (rank_.is_main()) {
      exporting::export_result(
          *result_, tensors, card(last_step),
          train::CheckpointStore(run_.run_dir() / "checkpoints").path_of(last_step));
    } else {
      result_->adapter ? weights::produce_without_file(tensors)
                       : weights::produce_shards_without_files(tensors);
    }
  } catch (const Interrupted&) {
  }
  return stop.agreed();
}

/// The last evaluation may be of an earlier part of the run.
void Training::end_report(const train::TrainOutcome& outcome) {
  if (!keeps_statements()) report_.first_step = outcome.first_step;
  if (works_) report_.finished_at = unix_seconds();
  report_.last_step = outcome.last_step;
  report_.error.clear();
  if (!trainer_->last_evaluation().is_null()) report_.evaluation = trainer_->last_evaluation();
  if (const train::BestState* best = trainer_->best())
    report_.best = {{"metric", best->metric}, {"value", *best->value}, {"step", best->step}};
  write_report(status_of_exit_code(outcome.exit_code));
}

/// On rank 0, after the last step and the result.
void Training::say_end(const train::TrainOutcome& outcome) const {
  if (outcome.exit_code != 0 && outcome.last_step == 0) {
    log::info("stopped before the first step; nothing was lost");
    return;
  }
  const int64_t total_steps = trainer_->total_steps();
  if (outcome.first_step < outcome.last_step) log::info("{}", memory_line(report_));
  if (outcome.exit_code != 0) {
    log::info("stopped after step {} of {} with a checkpoint; rerun the same command to resume",
              outcome.last_step, total_steps);
  } else {
    if (outcome.was_complete) log::info("this run was already complete: nothing was trained");
    log_result(*result_, run_.config.train.shown_metric(), held(), *run_.decoder,
               {.bad = run_.data.batches->num_bad_records(), .lost = trainer_->num_lost_records()},
               run_.leaves_template_unused);
  }
  train::require_parts(run_.run_dir(), run_.config.output.tensorboard, outcome.last_step,
                       outcome.exit_code);
}

/// The launcher then waits longer for the user's commands.
void Training::tell_of_commands(int64_t last_step) const {
  if (!rank_.is_main() || run_.config.callbacks.command.empty()) return;
  rank_.tell(launch::Status{.phase = launch::Phase::kCommands,
                            .step = last_step,
                            .total_steps = trainer_->total_steps()});
}

}  // namespace

int train_and_export(PreparedRun& run, Rank& rank) {
  return Training(run, rank).run();
}

}  // namespace sftrun::engine
