#include "saver.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/units.h"
#include "sftrun/kernels/profile_range.h"
#include "sftrun/observe/system.h"

namespace sftrun::train {

Saver::Saver(const TrainerInputs& inputs, TrainState& state, StepQueue& steps, RunLog& log)
    : in_(inputs),
      state_(state),
      steps_(steps),
      log_(log),
      store_(in_.run_dir / "checkpoints"),
      writer_(store_, *in_.comm),
      every_s_(parse_duration_s(in_.config.train.save_every).value_or(0)),
      last_save_s_(monotonic_seconds()) {}

void Saver::start() {
  first_step_ = state_.step;
  if (!in_.is_main()) return;
  make_directories(in_.run_dir / "checkpoints");
  store_.require_writable();
  store_.remove_leftovers();
  store_.set_later_aside(state_.step);
  store_.keep_newest(in_.config.train.save_total_limit, state_);
}

bool Saver::is_due(int64_t step) const {
  if (in_.config.train.save_strategy == config::SaveStrategy::kEpoch)
    return in_.batches->ends_epoch(step);
  const auto& every = in_.config.train.save_steps;
  return every && (step + 1) % *every == 0;
}

void Saver::add_to(HostNumbers& numbers) {
  numbers.save_due = every_s_ > 0 && monotonic_seconds() - last_save_s_ >= every_s_ ? 1 : 0;
  numbers.has_written_part = writer_.has_written_part() ? 1 : 0;
}

void Saver::note(const StepReport& report) {
  writer_.note_parts(report.all_parts_written);
  timer_expired_ = timer_expired_ || report.save_due;
}

bool Saver::has_resumed_step() const {
  const auto normal = [](const std::filesystem::path& path) {
    return absolute_path(path).lexically_normal();
  };
  return in_.resume_from && normal(*in_.resume_from) == normal(store_.path_of(state_.step));
}

/// Checks weights and optimizer state after the last update. All ranks get the same result.
void Saver::require_finite_state() {
  const at::Tensor squares = in_.strategy->squares(in_.strategy->owned().flat.master);
  const bool state_is_finite = in_.strategy->holds_everywhere(steps_.optimizer().is_finite());
  if (std::isfinite(squares.item<double>()) && state_is_finite) return;
  throw Error(
      ExitCode::kWorkerFailed,
      fmt::format("the weights are not finite after step {}; they are not saved", state_.step),
      in_.run_dir.string(),
      fmt::format("lower train.learning_rate or train.weight_decay; {}", newest_saved()));
}

std::string Saver::newest_saved() const {
  writer_.wait();
  const int64_t newest = std::max(first_step_, store_.newest_step(state_.step));
  if (newest == 0) return "no checkpoint was written yet";
  return fmt::format("the newest checkpoint is of step {}", newest);
}

/// Whether the ranks have memory for copies of what they write.
bool Saver::has_room_to_hold(const CheckpointContents& contents) const {
  const uint64_t of_machine = contents.bytes() * static_cast<uint64_t>(in_.local_world_size);
  const bool fits = of_machine <= observe::memory_info().available_bytes / 2;
  for (const std::vector<double>& of_rank : in_.comm->all_gather({fits ? 1.0 : 0.0}))
    if (of_rank[0] == 0) return false;
  return true;
}

bool Saver::saves_in_background(const CheckpointContents& contents, bool is_last) {
  using enum config::SaveInBackground;
  const config::SaveInBackground wanted = in_.config.train.save_in_background;
  if (is_last || wanted == kOff) return false;
  if (wanted == kOn || has_room_to_hold(contents)) return true;
  if (in_.is_main() && !std::exchange(has_told_of_no_room_, true)) {
    log::info(
        "checkpoints are written while training waits: there is no room for copies in the host's "
        "memory (train.save_in_background)");
  }
  return false;
}

CheckpointToWrite Saver::checkpoint_now() {
  state_.data_position = in_.batches->position();
  if (steps_.loss_scale().is_active()) state_.loss_scale = steps_.loss_scale().state();
  CheckpointToWrite checkpoint{
      .contents = checkpoint_contents(*in_.decoder, *in_.strategy, steps_.optimizer(),
                                      in_.adapter.has_value(), in_.config.train.checkpoint_format),
      .adapter = in_.adapter,
      .state = state_,
      .optimizer_steps = steps_.optimizer().steps(),
      .total_limit = in_.config.train.save_total_limit,
      .on_written = [step = state_.step, total = in_.batches->total_steps(),
                     path = absolute_path(store_.path_of(state_.step)),
                     tell = in_.hooks.on_run_event] {
        log::info("step {}/{} checkpoint written", step, total);
        tell({"checkpoint", step, {{"checkpoint", path.string()}}});
      }};
  checkpoint.contents.chat_template = in_.chat_template;
  checkpoint.contents.template_variables = in_.template_variables;
  checkpoint.contents.image_caps = in_.image_caps;
  checkpoint.contents.embedding = in_.embedding;
  return checkpoint;
}

void Saver::save(bool is_last) {
  const kernels::WorkRange saving(in_.hooks.activity, Work::kSaving);
  writer_.finish();
  require_finite_state();
  log_.tell("saving", state_.step);
  log_.sync();
  CheckpointToWrite checkpoint = checkpoint_now();
  const bool in_background = saves_in_background(checkpoint.contents, is_last);
  in_background ? writer_.begin(std::move(checkpoint)) : writer_.write(std::move(checkpoint));
  last_save_s_ = monotonic_seconds();
  timer_expired_ = false;
  log_.tell("training", state_.step);
}

}  // namespace sftrun::train
