#include "sftrun/train/run_length.h"
#include "sftrun/core/plural.h"

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/train/schedule.h"

namespace sftrun::train {
namespace {

/// The first finished step that has another learning rate under `now`; nullopt: none.
std::optional<int64_t> first_other_rate(const Schedule& before, const Schedule& now,
                                        int64_t steps_done) {
  for (int64_t step = 0; step < steps_done; ++step)
    if (before.lr_at(step) != now.lr_at(step)) return step;
  return std::nullopt;
}

}  // namespace

RunLength length_of(const config::TrainConfig& config) {
  return {.epochs = config.epochs, .max_steps = config.max_steps};
}

std::optional<RunLength> length_in(const nlohmann::ordered_json& identity) {
  const auto settings = identity.find("config");
  if (settings == identity.end() || !settings->is_object()) return std::nullopt;
  const auto epochs = settings->find("train.epochs"), steps = settings->find("train.max_steps");
  if (epochs == settings->end() || !epochs->is_number()) return std::nullopt;
  RunLength length{.epochs = epochs->get<double>()};
  if (steps != settings->end() && steps->is_number()) length.max_steps = steps->get<int64_t>();
  return length;
}

void require_length(const config::TrainConfig& config, const LengthChange& change,
                    bool is_permitted, const std::string& checkpoint) {
  if (change.steps_now < change.steps_done) {
    throw ConfigError(
        fmt::format("train.epochs and train.max_steps give {}, but {} are already done",
                    counted(change.steps_now, "step"), change.steps_done),
        checkpoint,
        "raise train.epochs or train.max_steps; or go back to an earlier checkpoint with --resume "
        "DIR; or start a new run: choose another output.dir, or --overwrite moves this run aside");
  }
  const Schedule before = schedule_of(config, change.steps_before);
  const Schedule now = schedule_of(config, change.steps_now);
  const auto other = first_other_rate(before, now, change.steps_done);
  if (!other) {
    log::info("the run now has {} instead of {}; the learning rates of the {} done are unchanged",
              counted(change.steps_now, "step"), change.steps_before, change.steps_done);
    return;
  }
  const std::string goes_on =
      fmt::format("the learning rate goes from {:.3g} (step {}) to {:.3g} (step {})",
                  before.lr_at(change.steps_done - 1), change.steps_done,
                  now.lr_at(change.steps_done), change.steps_done + 1);
  if (is_permitted) {
    log::info("the run now has {} instead of {}: {}", counted(change.steps_now, "step"),
              change.steps_before, goes_on);
    return;
  }
  throw ConfigError(
      fmt::format("the run now has {} instead of {}: with this train.scheduler the learning rates "
                  "of completed steps would differ, from step {} on",
                  counted(change.steps_now, "step"), change.steps_before, *other + 1),
      checkpoint,
      change.steps_now == change.steps_done
          ? "leave the run's length as it was; it is complete"
          : fmt::format(
                "add --allow-changed-length to continue on the new schedule: {}; or start a new "
                "run: choose another output.dir, or --overwrite moves this run aside",
                goes_on));
}

}  // namespace sftrun::train
