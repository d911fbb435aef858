#include "sftrun/train/trainer.h"

#include <utility>

#include "evaluations.h"
#include "run_log.h"
#include "saver.h"
#include "sftrun/core/log.h"
#include "step_queue.h"
#include "train_loop.h"

namespace sftrun::train {
namespace {

std::string words_of(const Build& build) {
  constexpr size_t kShown = 12;  // hexadecimal digits
  if (build.id.empty()) return "an older version of sftrun";
  return fmt::format("sftrun {}, build {}", build.version, build.id.substr(0, kShown));
}

}  // namespace

Trainer::Trainer(TrainerInputs inputs)
    : in_(std::move(inputs)),
      steps_(std::make_unique<StepQueue>(in_)),
      log_(std::make_unique<RunLog>(in_)),
      evaluations_(std::make_unique<Evaluations>(in_, state_, steps_->passes().objective(), *log_)),
      saver_(std::make_unique<Saver>(in_, state_, *steps_, *log_)) {
  if (in_.resume_from) resume();
  state_.identity = in_.identity;
  if (!in_.resume_from) state_.rendered_at_unix_s = in_.rendered_at_unix_s;
  note_build();
  evaluations_->start();
  saver_->start();
  if (in_.is_main()) log_->open(state_);
}

Trainer::~Trainer() = default;

void Trainer::resume() {
  restore(*in_.resume_from, *in_.strategy, steps_->optimizer());
  state_ = read_train_state(*in_.resume_from);
  if (state_.loss_scale) steps_->loss_scale().restore(*state_.loss_scale);
}

/// Another build may round differently, and nothing else would say why two runs differ.
void Trainer::note_build() {
  std::vector<Build>& builds = state_.builds;
  in_.build.from_step = state_.step;
  if (in_.resume_from && builds.empty()) builds.emplace_back();
  if (!builds.empty() && builds.back().is_same_program(in_.build)) return;
  if (!builds.empty() && in_.is_main()) {
    log::warn(
        "the run is resumed by another build of the program: the checkpoint is of {}, this is {}; "
        "later steps may be rounded differently",
        words_of(builds.back()), words_of(in_.build));
  }
  builds.push_back(in_.build);
}

TrainOutcome Trainer::run() {
  return TrainLoop(in_, state_, *steps_, *evaluations_, *saver_, *log_).run();
}

uint64_t Trainer::optimizer_bytes() const {
  return steps_->optimizer_bytes();
}

std::optional<double> Trainer::epochs_of(int64_t steps) const {
  if (in_.config.data.streaming) return std::nullopt;
  return steps == 0 ? 0 : in_.batches->epochs_after(steps - 1);
}

int64_t Trainer::num_evaluations() const {
  const int64_t steps = total_steps();
  return evaluations_->count(steps, epochs_of(steps).value_or(0));
}

bool Trainer::is_complete() const {
  return state_.step >= total_steps() || evaluations_->should_stop();
}

int64_t Trainer::num_lost_records() const {
  return steps_->passes().num_lost_records();
}

bool Trainer::learns_nothing() const {
  return steps_->learns_nothing();
}

const BestState* Trainer::best() const {
  return evaluations_->best();
}

const nlohmann::ordered_json& Trainer::last_evaluation() const {
  return evaluations_->last();
}

void Trainer::load_best() {
  if (!evaluations_->wants_best_loaded()) return;
  saver_->finish();
  evaluations_->load_best();
}

}  // namespace sftrun::train
