#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/observe/system.h"
#include "sftrun/train/trainer.h"

/// When training writes checkpoints, and what is in them.
namespace sftrun::train {

bool Trainer::save_due(int64_t step) const {
  if (in_.config.train.save_strategy == config::SaveStrategy::kEpoch)
    return in_.batches->ends_epoch(step);
  const auto& every = in_.config.train.save_steps;
  return every && (step + 1) % *every == 0;
}

/// Checks weights and optimizer state after the last update. All ranks get the same result.
void Trainer::require_finite_state(int64_t steps_done) {
  const at::Tensor squares = in_.strategy->squares(in_.strategy->owned().flat.master);
  const bool state_is_finite = in_.strategy->holds_everywhere(optimizer_->is_finite());
  if (std::isfinite(squares.item<double>()) && state_is_finite) return;
  throw Error(
      ExitCode::kWorkerFailed,
      fmt::format("the weights are not finite after step {}; they are not saved", steps_done),
      in_.run_dir.string(),
      fmt::format("lower train.learning_rate or train.weight_decay; {}", newest_saved()));
}

std::string Trainer::newest_saved() const {
  checkpoint_writer_.wait();
  const int64_t newest = std::max(resumed_step_, checkpoints_.newest_step(state_.step));
  if (newest == 0) return "no checkpoint was written yet";
  return fmt::format("the newest checkpoint is of step {}", newest);
}

/// Whether the ranks have memory for copies of what they write.
bool Trainer::has_room_to_hold(const CheckpointContents& contents) {
  const uint64_t of_machine = contents.bytes() * static_cast<uint64_t>(in_.local_world_size);
  const bool fits = of_machine <= observe::memory_info().available_bytes / 2;
  for (const std::vector<double>& of_rank : in_.comm->all_gather({fits ? 1.0 : 0.0}))
    if (of_rank[0] == 0) return false;
  return true;
}

/// @param is_last whether the run ends with it, so that nothing goes on while it is written
bool Trainer::saves_in_background(const CheckpointContents& contents, bool is_last) {
  using enum config::SaveInBackground;
  const config::SaveInBackground wanted = in_.config.train.save_in_background;
  if (is_last || wanted == kOff) return false;
  if (wanted == kOn || has_room_to_hold(contents)) return true;
  if (is_main() && !std::exchange(told_no_room_, true)) {
    log::info(
        "checkpoints are written while training waits: there is no room for copies in the host's "
        "memory (train.save_in_background)");
  }
  return false;
}

CheckpointToWrite Trainer::checkpoint_now() {
  state_.data_position = in_.batches->position();
  if (loss_scale_.is_active()) state_.loss_scale = loss_scale_.state();
  CheckpointToWrite checkpoint{
      .contents = checkpoint_contents(*in_.decoder, *in_.strategy, *optimizer_,
                                      in_.adapter.has_value(), in_.config.train.checkpoint_format),
      .adapter = in_.adapter,
      .state = state_,
      .optimizer_steps = optimizer_->steps(),
      .total_limit = in_.config.train.save_total_limit,
      .on_written = [step = state_.step, total = in_.batches->total_steps(),
                     path = absolute_path(checkpoints_.path_of(state_.step)),
                     tell = in_.hooks.on_run_event] {
        log::info("step {}/{} checkpoint written", step, total);
        tell({"checkpoint", step, {{"checkpoint", path.string()}}});
      }};
  checkpoint.contents.chat_template = in_.chat_template;
  checkpoint.contents.template_variables = in_.template_variables;
  return checkpoint;
}

void Trainer::save(int64_t steps_done, bool is_last) {
  const kernels::WorkRange saving(in_.hooks.activity, Work::kSaving);
  checkpoint_writer_.finish();
  require_finite_state(steps_done);
  tell("saving", steps_done);
  metrics_.sync();
  CheckpointToWrite checkpoint = checkpoint_now();
  const bool in_background = saves_in_background(checkpoint.contents, is_last);
  in_background ? checkpoint_writer_.begin(std::move(checkpoint))
                : checkpoint_writer_.write(std::move(checkpoint));
  last_save_s_ = monotonic_seconds();
  save_wanted_ = saves_best_ = false;
  tell("training", steps_done);
}

}  // namespace sftrun::train
