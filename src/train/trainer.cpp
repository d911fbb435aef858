#include "sftrun/train/trainer.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/observe/system.h"
#include "step_values.h"

namespace sftrun::train {
namespace {

constexpr int64_t kBeforeAll = -1;  // drops the events of step 0, too

}  // namespace

/// A step that was queued on the device and whose values were not read yet.
struct Trainer::QueuedStep {
  int64_t step = 0;
  data::StepBatch batch;
  double started_s = 0;  // on the monotonic clock
  double learning_rate = 0, loss_scale = 1;
  double epochs = 0;                      // epochs of data after this step
  std::vector<std::string> metric_names;  // of the objective
};

/// Results of one step over all ranks.
struct Trainer::StepReport {
  double loss = 0, grad_norm = 0, seconds = 0;
  std::optional<double> aux_loss;           // mean over all micro-batches
  observe::NamedValues objective;           // means that the objective reports
  std::vector<double> loss_per_rank;        // mean over the terms of each rank
  std::vector<uint64_t> peak_memory_bytes;  // per rank
  std::vector<double> gpu_utilization;      // per rank; empty if a rank has no reading
  std::vector<uint64_t> memory_used_bytes;  // per rank
  std::vector<double> cpu_utilization;      // per rank
  std::optional<observe::StepParts> parts;  // of this rank
  // Index of the first packed sequence of the first micro-batch with a non-finite loss; -1: none.
  int64_t not_finite_at = -1;
  bool skipped = false;  // fp16: gradients were not finite, so no weight was changed
};

Trainer::Trainer(TrainerInputs inputs)
    : in_(std::move(inputs)),
      schedule_(schedule_of(in_.config.train, in_.batches->total_steps())),
      objective_(in_.config.train),
      optimizer_(make_optimizer(in_.strategy->owned(), in_.config.train)),
      loss_scale_(in_.decoder->options().dtype == at::kHalf),
      reads_later_(in_.decoder->options().device.is_cuda() && updates_on_device() &&
                   !loss_scale_.is_active() && optimizer_->reads_gate()),
      micro_batches_(make_schedule(*in_.decoder, *in_.strategy, objective_, in_.config)),
      numbers_{StepNumbers(in_.decoder->options().device),
               StepNumbers(in_.decoder->options().device)},
      timers_{StepTimer(in_.decoder->options().device), StepTimer(in_.decoder->options().device)},
      best_(in_.config.train),
      checkpoints_(in_.run_dir / "checkpoints"),
      checkpoint_writer_(checkpoints_, *in_.comm),
      profiler_(in_.profiled_steps, in_.run_dir / "profile", in_.comm->rank(),
                in_.decoder->options().device),
      progress_(in_.batches->total_steps()),
      save_every_s_(parse_duration_s(in_.config.train.save_every).value_or(0)),
      last_save_s_(monotonic_seconds()) {
  if (in_.val) evaluator_.emplace(in_.config, *in_.val);
  require_known_metric();
  if (reads_later_) gate_ = kernels::open_gate(in_.decoder->options().device);
  state_.identity = in_.identity;
  state_.rendered_at_unix_s = in_.rendered_at_unix_s;
  if (in_.resume_from) {
    restore(*in_.resume_from, *in_.strategy, *optimizer_);
    state_ = read_train_state(*in_.resume_from);
    state_.identity = in_.identity;
    resumed_step_ = state_.step;
    if (state_.loss_scale) loss_scale_.restore(*state_.loss_scale);
    state_.evaluation_due = state_.evaluation_due && evaluator_;
  }
  note_build();
  prepare_best();
  if (is_main()) open_run_directory();
  if (in_.hooks.activity != nullptr) {
    in_.hooks.activity->on_change([this](Work work, bool waits) {
      for (StepTimer& timer : timers_) timer.mark(work, waits);  // one at most is running
    });
  }
}

/// Removes what is later than the step that the run starts from, and opens what it writes to.
void Trainer::open_run_directory() {
  make_directories(in_.run_dir / "checkpoints");
  checkpoints_.require_writable();
  checkpoints_.remove_leftovers();
  checkpoints_.set_later_aside(state_.step);
  checkpoints_.keep_newest(in_.config.train.save_total_limit, state_);
  remove_temporaries(in_.run_dir);
  remove_temporaries(in_.run_dir / "tensorboard");
  const int64_t kept_steps = in_.resume_from ? state_.step : kBeforeAll;
  observe::truncate_metrics_to_step(in_.run_dir / "metrics.jsonl", kept_steps,
                                    /*keeps_evaluation=*/!state_.evaluation_due);
  metrics_ = observe::MetricsWriter(in_.run_dir / "metrics.jsonl");
  if (in_.config.output.tensorboard) {
    make_directories(in_.run_dir / "tensorboard");
    events_ = observe::EventWriter(in_.run_dir / "tensorboard", kept_steps);
    events_.text("config", "```yaml\n" + config::to_yaml(in_.config) + "```", state_.step);
    events_.hparams(config::to_json(in_.config), state_.step);
  }
}

namespace {

std::string words_of(const Build& build) {
  constexpr size_t kShown = 12;  // hexadecimal digits
  if (build.id.empty()) return "an older version of sftrun";
  return fmt::format("sftrun {}, build {}", build.version, build.id.substr(0, kShown));
}

}  // namespace

/// Another build may round differently, and nothing else would say why two runs differ.
void Trainer::note_build() {
  std::vector<Build>& builds = state_.builds;
  in_.build.from_step = state_.step;
  if (in_.resume_from && builds.empty()) builds.emplace_back();
  if (!builds.empty() && builds.back().is_same_program(in_.build)) return;
  if (!builds.empty() && is_main()) {
    log::warn(
        "the run is resumed by another build of the program: the checkpoint is of {}, this is {}; "
        "later steps may be rounded differently",
        words_of(builds.back()), words_of(in_.build));
  }
  builds.push_back(in_.build);
}

Trainer::~Trainer() {
  if (in_.hooks.activity != nullptr) in_.hooks.activity->on_change(nullptr);
}

TrainOutcome Trainer::run() {
  const int64_t total = in_.batches->total_steps();
  outcome_.first_step = outcome_.last_step = state_.step;
  const WorkScope training(in_.hooks.activity, Work::kTraining);
  tell("training", state_.step);
  warn_of_unprofiled_steps();
  if (in_.longest_batch_first && state_.step < total && !best_.should_stop()) {
    try_longest_batch();
    tell("training", state_.step);
  }
  const bool starts = state_.step == 0 && evaluator_ && in_.config.train.eval_on_start;
  bool evaluated = true;
  if (starts || state_.evaluation_due) evaluated = evaluate(state_.step);
  // The best one needs a checkpoint of its step, which is mostly the one that the run came from.
  if (std::exchange(saves_best_, false) && !is_resumed_in_place())
    save(state_.step, /*is_last=*/false);
  outcome_.was_complete = evaluated && (state_.step >= total || best_.should_stop());
  for (int64_t step = state_.step; evaluated && step < total && !best_.should_stop(); ++step) {
    const bool last = step + 1 == total, evaluates = evaluation_due(step, last),
               saves = last || save_due(step);
    profiler_.begin(step + 1);
    try {
      queue_step(step);
    } catch (...) {
      finish_before_error();
      throw;
    }
    finish_steps(reads_later_ && !evaluates && !saves && !profiler_.ends_with(step + 1) ? 1 : 0);
    profiler_.end(step + 1);
    if (stop_exit_code_ != 0 || save_wanted_) finish_steps(0);
    if (evaluates) evaluated = evaluate(state_.step);
    const bool ends = evaluated && (last || best_.should_stop());
    const bool stopping = stop_exit_code_ != 0 && !ends;
    if (saves || ends || stopping || saves_best_ || save_wanted_)
      save(state_.step, /*is_last=*/ends || stopping);
    if (stopping) break;
  }
  const bool is_done = evaluated && (state_.step >= total || best_.should_stop());
  if (!is_done) outcome_.exit_code = stop_exit_code_;
  if (is_main() && is_done && state_.step < total) log_early_stop();
  metrics_.sync();
  profiler_.finish();
  if (is_main()) micro_batches_->log_use();
  return outcome_;
}

/// Whether the checkpoint that the run was resumed from is among its own.
bool Trainer::is_resumed_in_place() const {
  const auto normal = [](const std::filesystem::path& path) {
    return absolute_path(path).lexically_normal();
  };
  return in_.resume_from && normal(*in_.resume_from) == normal(checkpoints_.path_of(state_.step));
}

void Trainer::warn_of_unprofiled_steps() const {
  const StepRange& wanted = in_.profiled_steps;
  if (wanted.is_empty() || !is_main()) return;
  if (wanted.first > state_.step && wanted.last <= total_steps()) return;
  log::warn("--profile {}-{}: this start of the run has steps {} to {}; others are not profiled",
            wanted.first, wanted.last, state_.step + 1, total_steps());
}

bool Trainer::updates_on_device() const {
  return in_.strategy->owned().flat.master.device() == in_.decoder->options().device;
}

uint64_t Trainer::optimizer_bytes() const {
  return updates_on_device() ? optimizer_->device_bytes() : 0;
}

bool Trainer::learns_nothing() const {
  for (int64_t step = 0; step < total_steps(); ++step)
    if (schedule_.lr_at(step) > 0) return false;
  return true;
}

/// Queues the forward and backward pass, the gradient reduction and, if the device decides, the
/// update. Does not wait for the device unless its queue is full.
void Trainer::queue_step(int64_t step) {
  QueuedStep queued{.step = step, .started_s = monotonic_seconds()};
  if (in_.hooks.activity != nullptr) in_.hooks.activity->set_step(step + 1);
  const kernels::WorkRange training(in_.hooks.activity, Work::kTraining);
  numbers_of(step).begin();
  timer_of(step).begin();
  {
    const kernels::WorkRange loading(in_.hooks.activity, Work::kDataLoader);
    queued.batch = in_.batches->at(step);
  }
  queued.epochs = in_.batches->epochs_after(step);
  queued.loss_scale = loss_scale_.value();
  queued.learning_rate = schedule_.lr_at(step - loss_scale_.state().skipped_steps);
  in_.strategy->begin_step();
  const StepSums sums = forward_backward(queued.batch, step);
  in_.strategy
      ->finish_step();  // sum, not mean: gradients are already divided by the number of terms
  queued.metric_names = sums.metric_names;
  queue_update(queued, sums);
  queued_.push_back(std::move(queued));
}

/// Queues the update if the device decides about it, then the copy of the step's values to the
/// host.
void Trainer::queue_update(const QueuedStep& queued, const StepSums& sums) {
  StepNumbers& numbers = numbers_of(queued.step);
  const at::Tensor grad_norm = in_.strategy->squares(in_.strategy->owned().flat.grad).sqrt_();
  numbers.gather(*in_.comm, grad_norm, sums, host_numbers(sums));
  if (reads_later_) {
    kernels::decide_update_(gate_, numbers.on_device(),
                            {.num_losses = static_cast<int64_t>(sums.losses.size()),
                             .num_terms = static_cast<double>(num_terms(queued.batch)),
                             .max_norm = in_.config.train.max_grad_norm});
    const kernels::WorkRange updating(in_.hooks.activity, Work::kOptimizer);
    optimizer_->step(queued.learning_rate, gate_);
  }
  timer_of(queued.step).end();
  numbers.send();
}

HostNumbers Trainer::host_numbers(const StepSums& sums) {
  const bool is_save_due = save_every_s_ > 0 && monotonic_seconds() - last_save_s_ >= save_every_s_;
  const HostNumbers numbers{.num_terms = static_cast<double>(sums.num_terms),
                            .peak_memory_bytes = static_cast<double>(in_.hooks.peak_memory_bytes()),
                            .stop_exit_code = static_cast<double>(in_.hooks.stop_exit_code()),
                            .save_due = is_save_due ? 1.0 : 0.0,
                            .gpu_utilization = in_.hooks.gpu_utilization().value_or(-1),
                            .has_written_part = checkpoint_writer_.has_written_part() ? 1.0 : 0.0,
                            .memory_used_bytes = static_cast<double>(in_.hooks.memory_used_bytes()),
                            .cpu_utilization = in_.hooks.cpu_utilization(),
                            .work = work_of_step()};
  event_.memory_bytes = static_cast<uint64_t>(numbers.peak_memory_bytes);
  event_.memory_used_bytes = static_cast<uint64_t>(numbers.memory_used_bytes);
  event_.cpu_percent = numbers.cpu_utilization;
  if (numbers.gpu_utilization >= 0) event_.gpu_percent = numbers.gpu_utilization;
  return numbers;
}

/// Reads the oldest queued steps until `left_queued` remain.
void Trainer::finish_steps(size_t left_queued) {
  while (queued_.size() > left_queued) {
    const QueuedStep queued = std::move(queued_.front());
    queued_.erase(queued_.begin());
    const StepReport report = finish_step(queued);
    state_.step = outcome_.last_step = queued.step + 1;
    state_.tokens += queued.batch.tokens;
    state_.trained_seconds += report.seconds;
    log_step(queued, report);
  }
}

/// An error while a step is queued may come from the previous step. Its values are read and checked
/// first; if they are finite they are logged. A lost device has no values to read.
void Trainer::finish_before_error() {
  try {
    finish_steps(0);
  } catch (const c10::Error&) {
  }
}

Trainer::StepReport Trainer::finish_step(const QueuedStep& queued) {
  StepReport report = read(queued);
  report.skipped = overflows(report);
  double update_s = 0;  // that the timer has not seen
  if (!report.skipped) {
    require_finite(report, queued.batch, queued.step);  // before any weight moves
    if (!reads_later_) {
      const kernels::WorkRange updating(in_.hooks.activity, Work::kOptimizer);
      const double factor = clip_factor(report.grad_norm, in_.config.train.max_grad_norm);
      const double began = monotonic_seconds();
      optimizer_->step(queued.learning_rate, factor * (1 / queued.loss_scale));
      update_s = monotonic_seconds() - began;
    }
  }
  report.seconds =
      reads_later_ ? numbers_of(queued.step).seconds() : monotonic_seconds() - queued.started_s;
  if (in_.hooks.activity != nullptr) {
    observe::StepParts& parts = report.parts.emplace(timer_of(queued.step).read());
    parts.optimizer += update_s;
    const double named =
        parts.data + parts.forward + parts.backward + parts.communication + parts.optimizer;
    parts.other = std::max(0.0, report.seconds - named);
  }
  return report;
}

/// fp16: gradients may exceed fp16's range. The step is skipped and the loss scale halved.
bool Trainer::overflows(const StepReport& report) {
  if (!loss_scale_.is_active() || !std::isfinite(report.loss)) return false;
  const bool accepted = loss_scale_.accept(std::isfinite(report.grad_norm));
  return !accepted && !loss_scale_.is_exhausted();
}

/// The only wait for the device in a step.
Trainer::StepReport Trainer::read(const QueuedStep& queued) {
  const std::vector<RankNumbers> ranks = wait_for_numbers(queued.step);
  name_stragglers(ranks);
  checkpoint_writer_.note_parts(std::all_of(ranks.begin(), ranks.end(), [](const RankNumbers& r) {
    return r.host.has_written_part != 0;
  }));
  StepReport report;
  report.grad_norm = ranks.front().grad_norm / queued.loss_scale;
  double total = 0, aux_total = 0;
  std::vector<double> metric_sums(queued.metric_names.size());
  const parallel::Mesh& mesh = in_.strategy->mesh();
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankNumbers& numbers = ranks[i];
    const auto rank = static_cast<int>(i);
    double of_rank = 0, aux_of_rank = 0;
    for (const double loss : numbers.losses) of_rank += loss;
    for (const double loss : numbers.aux_losses) aux_of_rank += loss;
    // The reduced norm is the same on all ranks unless a GPU or a link is broken. A non-finite norm
    // on any rank stops the update.
    if (!std::isfinite(numbers.grad_norm)) report.grad_norm = numbers.grad_norm;
    if (mesh.counts_loss_of(rank)) {
      total += of_rank;
      aux_total += aux_of_rank;
      for (size_t m = 0; m < metric_sums.size(); ++m) metric_sums[m] += numbers.metrics[m];
    }
    const HostNumbers& host = numbers.host;
    const bool has_loss = host.num_terms > 0 && mesh.counts_loss_of(rank);
    report.loss_per_rank.push_back(has_loss ? of_rank / host.num_terms : kNoLoss);
    report.peak_memory_bytes.push_back(static_cast<uint64_t>(host.peak_memory_bytes));
    if (host.gpu_utilization >= 0) report.gpu_utilization.push_back(host.gpu_utilization);
    report.memory_used_bytes.push_back(static_cast<uint64_t>(host.memory_used_bytes));
    report.cpu_utilization.push_back(host.cpu_utilization);
    stop_exit_code_ = std::max(stop_exit_code_, static_cast<int>(host.stop_exit_code));
    if (report.not_finite_at < 0)
      report.not_finite_at = not_finite_at(numbers, mesh.dp_rank_of(rank));
  }
  if (report.gpu_utilization.size() < ranks.size()) report.gpu_utilization.clear();
  save_wanted_ = save_wanted_ || ranks.front().host.save_due != 0;
  if (aux_coef() > 0) report.aux_loss = aux_total / num_micro_batches(queued.batch);
  const auto terms = static_cast<double>(num_terms(queued.batch));
  report.loss = total / terms;
  for (size_t i = 0; i < queued.metric_names.size(); ++i)
    report.objective.emplace_back(queued.metric_names[i], metric_sums[i] / terms);
  return report;
}

std::vector<RankNumbers> Trainer::wait_for_numbers(int64_t step) {
  if (in_.decoder->options().device.is_cpu()) return numbers_of(step).wait();
  // The GPU's queue holds collectives: if another rank does not come, the host waits here.
  const WaitScope wait(in_.hooks.activity, "device");
  const kernels::ProfileRange range("wait: device");
  return numbers_of(step).wait();
}

/// Host seconds of this rank's own work since the last call.
WorkSeconds Trainer::work_of_step() {
  WorkSeconds of_step{};
  if (in_.hooks.activity == nullptr) return of_step;
  const std::array<double, kNumWorks> total = in_.hooks.activity->seconds_of_works();
  for (size_t i = 0; i < kStepWorks.size(); ++i) {
    const double seconds = total[static_cast<size_t>(kStepWorks[i])];
    of_step[i] = seconds - std::exchange(work_before_[i], seconds);
  }
  return of_step;
}

void Trainer::name_stragglers(const std::vector<RankNumbers>& ranks) {
  const parallel::MeshSizes& sizes = in_.strategy->mesh().sizes();
  if (sizes.pp > 1 || sizes.tp > 1)
    return;  // stages have different work; parts wait for each other
  std::vector<WorkSeconds> work;
  for (const RankNumbers& rank : ranks) work.push_back(rank.host.work);
  for (const std::string& straggler : stragglers_.add(work))
    if (is_main()) log::warn("{}", straggler);
}

/// Index of the first packed sequence of the rank's first micro-batch with a non-finite loss; -1:
/// none.
int64_t Trainer::not_finite_at(const RankNumbers& numbers, int dp_rank) const {
  for (size_t micro_step = 0; micro_step < numbers.losses.size(); ++micro_step)
    if (!std::isfinite(numbers.losses[micro_step]))
      return first_bin(static_cast<int64_t>(micro_step), dp_rank);
  return -1;
}

int64_t Trainer::first_bin(int64_t micro_step, int dp_rank) const {
  return (micro_step * in_.strategy->mesh().dp_size() + dp_rank) *
         *in_.config.train.batch_size.value;
}

/// Without its micro-batches.
StepWork Trainer::work_of(const data::StepBatch& global_batch, int64_t step) const {
  StepWork work;
  work.activity = in_.hooks.activity;
  work.randomness = {static_cast<uint64_t>(in_.config.train.seed), static_cast<uint32_t>(step),
                     /*training=*/objective_.info().has_dropout};
  work.grad_scale = loss_scale_.value() / static_cast<double>(num_terms(global_batch));
  if (aux_coef() > 0)
    work.aux_grad_scale = loss_scale_.value() * aux_coef() / num_micro_batches(global_batch);
  return work;
}

StepSums Trainer::forward_backward(const data::StepBatch& global_batch, int64_t step) {
  const config::TrainConfig& train = in_.config.train;
  StepWork work = work_of(global_batch, step);
  work.num_micro_batches = *train.grad_accum.value;
  work.micro_batch = [&](int64_t micro_step) {
    const kernels::WorkRange loading(in_.hooks.activity, Work::kDataLoader);
    return data::make_batch(global_batch.examples, global_batch.bins,
                            first_bin(micro_step, in_.strategy->mesh().dp_rank()),
                            *train.batch_size.value);
  };
  return micro_batches_->run(work);
}

/// The longest micro-batch on every rank, as often as a step has micro-batches at the same time. Its
/// gradients are thrown away by the first step, and dropout depends on the step only, so that the run
/// is the same to the bit.
void Trainer::try_longest_batch() {
  const int64_t batch_size = *in_.config.train.batch_size.value,
                all = *in_.config.train.grad_accum.value;
  tell("fitting", state_.step);
  const data::StepBatch longest = in_.batches->longest(batch_size);
  const parallel::CollectiveCounts counts = in_.comm->counts();
  StepWork work = work_of(longest, state_.step);
  work.num_micro_batches = in_.config.parallel.fetch == config::Fetch::kPerStep
                               ? all
                               : std::min<int64_t>(all, in_.strategy->mesh().sizes().pp);
  work.micro_batch = [&](int64_t) {
    return data::make_batch(longest.examples, longest.bins, 0, batch_size);
  };
  in_.strategy->begin_step();
  const StepSums sums = micro_batches_->run(work);
  in_.strategy->finish_step();
  for (const at::Tensor& loss : sums.losses) loss.item<double>();  // waits for the device
  in_.comm->set_counts(counts);
  work_of_step();  // is not that of the first step
}

double Trainer::aux_coef() const {
  return in_.config.train.router_aux_loss_coef.value_or(0);
}

/// Over all ranks, without micro-batches that are empty in a short last batch.
double Trainer::num_micro_batches(const data::StepBatch& global_batch) const {
  const int64_t size = *in_.config.train.batch_size.value;
  return static_cast<double>((static_cast<int64_t>(global_batch.bins.size()) + size - 1) / size);
}

int64_t Trainer::num_terms(const data::StepBatch& global_batch) const {
  int64_t documents = 0;
  for (const data::Bin& bin : global_batch.bins) documents += static_cast<int64_t>(bin.size());
  return objective_.count_terms({global_batch.label_tokens, documents});
}

void Trainer::require_finite(const StepReport& report, const data::StepBatch& global_batch,
                             int64_t step) const {
  if (std::isfinite(report.loss) && std::isfinite(report.grad_norm)) return;
  if (step == outcome_.first_step) in_.hooks.look_at_base();
  const int64_t micro_batch_size = *in_.config.train.batch_size.value;
  const bool is_located = report.not_finite_at >= 0;
  const int64_t first = is_located ? report.not_finite_at : 0;
  const int64_t end = is_located ? first + micro_batch_size : INT64_MAX;
  throw Error(ExitCode::kWorkerFailed,
              fmt::format("{} is not finite at step {}; no weight was changed by this step",
                          std::isfinite(report.loss) ? "the gradient norm" : "the loss", step + 1),
              fmt::format("{} of {}", records_of(global_batch, first, end),
                          is_located ? "the micro-batch where it appeared" : "this step's batch"),
              fmt::format("check these records, lower train.learning_rate, or use model.dtype "
                          "fp32; {}",
                          newest_saved()));
}

/// The records in packed sequences [first, end) of a batch: "a.jsonl, lines 3, 4; b.csv, row 7".
std::string Trainer::records_of(const data::StepBatch& global_batch, int64_t first,
                                int64_t end) const {
  constexpr size_t kShown = 16;
  std::map<std::string, std::set<int64_t>> numbers;  // record numbers by file, ascending
  std::map<std::string, bool> is_table;
  for (int64_t bin = first; bin < std::min(end, static_cast<int64_t>(global_batch.bins.size()));
       ++bin) {
    for (const int64_t example : global_batch.bins[static_cast<size_t>(bin)]) {
      const data::SourceFile& file = in_.batches->file_of(global_batch, example);
      numbers[file.path].insert(global_batch.examples.stored(example).number);
      is_table[file.path] = file.is_table;
    }
  }
  std::vector<std::string> files;
  for (const auto& [path, of_file] : numbers) {
    std::vector<std::string> shown;
    for (const int64_t number : of_file) {
      if (shown.size() < kShown) shown.push_back(std::to_string(number));
    }
    std::string text =
        fmt::format("{}, {} {}", path, plural(is_table[path] ? "row" : "line", of_file.size()),
                    join(shown, ", "));
    if (of_file.size() > kShown) text += fmt::format(" and {} more", of_file.size() - kShown);
    files.push_back(std::move(text));
  }
  return join(files, "; ");
}

void Trainer::tell(const char* phase, int64_t steps_done) {
  event_.phase = phase;
  event_.step = steps_done;
  event_.total_steps = in_.batches->total_steps();
  in_.hooks.on_event(event_);
}

void Trainer::log_step(const QueuedStep& queued, const StepReport& report) {
  const kernels::WorkRange writing(in_.hooks.activity, Work::kMetrics);
  const int64_t done = queued.step + 1;
  progress_.add({done, report.loss, report.grad_norm, queued.learning_rate, queued.batch.tokens,
                 report.seconds, report.aux_loss, objective_.info().shown.word,
                 value_of(report.objective, objective_.info().shown.metric)});
  event_.loss = report.loss;
  event_.tokens_per_second = progress_.tokens_per_second();
  event_.eta_s = progress_.seconds_left();
  tell("training", done);
  if (!is_main()) return;
  if (report.skipped) {
    log::info(
        "step {}: gradients exceed fp16; the update was left out and the loss scale halved to {:g}",
        done, loss_scale_.value());
  }
  observe::TrainMetrics m;
  m.step = done;
  m.epoch = queued.epochs;
  m.loss = report.loss;
  m.objective = report.objective;
  m.aux_loss = report.aux_loss;
  m.grad_norm = report.grad_norm;
  if (loss_scale_.is_active()) m.loss_scale = loss_scale_.value();
  m.learning_rate = queued.learning_rate;
  m.label_tokens = queued.batch.label_tokens;
  m.tokens = queued.batch.tokens;
  m.tokens_per_second = static_cast<double>(m.tokens) / report.seconds;
  m.step_seconds = report.seconds;
  m.peak_memory_bytes = report.peak_memory_bytes;
  m.loss_per_rank = report.loss_per_rank;
  m.gpu_utilization = report.gpu_utilization;
  m.parts = report.parts;
  m.memory_used_bytes = report.memory_used_bytes;
  m.cpu_utilization = report.cpu_utilization;
  write_metrics(m);
  const int64_t every = std::max<int64_t>(1, in_.config.train.logging_steps);
  if (done % every == 0 || done == in_.batches->total_steps()) log::info("{}", progress_.line());
}

void Trainer::write_metrics(const observe::TrainMetrics& m) {
  const int64_t done = m.step;
  metrics_.write(m);
  events_.scalar("train/loss", m.loss, done);
  for (const auto& [name, value] : m.objective) events_.scalar("train/" + name, value, done);
  if (m.loss_scale) events_.scalar("train/loss_scale", *m.loss_scale, done);
  if (m.aux_loss) events_.scalar("train/aux_loss", *m.aux_loss, done);
  events_.scalar("train/grad_norm", m.grad_norm, done);
  events_.scalar("train/learning_rate", m.learning_rate, done);
  events_.scalar("train/tokens_per_second", m.tokens_per_second, done);
  events_.scalar("train/step_seconds", m.step_seconds, done);
  events_.scalar("train/epoch", m.epoch, done);
  if (m.parts) {
    for (const auto& [name, seconds] : observe::named_parts(*m.parts))
      events_.scalar(fmt::format("time/{}", name), seconds, done);
  }
  for (size_t rank = 0; rank < m.loss_per_rank.size(); ++rank) {
    if (std::isfinite(m.loss_per_rank[rank]))
      events_.scalar(fmt::format("rank_{}/loss", rank), m.loss_per_rank[rank], done);
    events_.scalar(fmt::format("rank_{}/peak_memory_bytes", rank),
                   static_cast<double>(m.peak_memory_bytes[rank]), done);
    events_.scalar(fmt::format("rank_{}/memory_used_bytes", rank),
                   static_cast<double>(m.memory_used_bytes[rank]), done);
    events_.scalar(fmt::format("rank_{}/cpu_utilization", rank), m.cpu_utilization[rank], done);
    if (!m.gpu_utilization.empty())
      events_.scalar(fmt::format("rank_{}/gpu_utilization", rank), m.gpu_utilization[rank], done);
  }
  events_.flush();
}

}  // namespace sftrun::train
