#include "sftrun/train/resume.h"

#include <functional>

#include "sftrun/core/error.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/observe/foreign_results.h"
#include "sftrun/train/batches.h"
#include "sftrun/train/identity.h"
#include "sftrun/train/run_directory.h"
#include "sftrun/train/run_length.h"

namespace sftrun::train {
namespace fs = std::filesystem;
namespace {

void overwrite(const fs::path& run_dir) {
  observe::require_no_model(run_dir);
  if (const auto aside = set_run_aside(run_dir); !aside.empty())
    log::info("the earlier run in {} is now {}", run_dir.string(), aside.string());
}

/// @param verifies whether to read every byte: once, not on every rank
fs::path named_checkpoint(const fs::path& checkpoint, bool verifies) {
  if (!leads_to_file(checkpoint / "state.json")) {
    throw ConfigError("there is no checkpoint to resume from", checkpoint.string(),
                      "name a folder like checkpoints/step-000100");
  }
  if (verifies) verify_checkpoint(checkpoint);
  return checkpoint;
}

/// What rank 0 finds, on every rank.   @throws Interrupted on every rank, if rank 0 was
double found_by_main(parallel::Communicator& comm, const std::function<double()>& find) {
  constexpr double kInterrupted = -1;
  double found = 0;
  try {
    if (comm.rank() == 0) found = find();
  } catch (const Interrupted&) {
    found = kInterrupted;
  }
  found = comm.all_gather({found})[0][0];
  if (found == kInterrupted) throw Interrupted();
  return found;
}

/// The step of the newest checkpoint; 0: there is none.
int64_t newest_step(const fs::path& run_dir, bool resumes) {
  const CheckpointStore store(run_dir / "checkpoints");
  if (!resumes && store.holds_any()) {
    throw ConfigError(
        "the run directory already has checkpoints", run_dir.string(),
        "choose another output.dir, or, in place of --resume never, resume with --resume auto or "
        "move the old run aside with --overwrite");
  }
  if (const auto latest = store.latest()) return read_train_state(*latest).step;
  observe::require_no_results(run_dir);
  return 0;
}

}  // namespace

std::optional<fs::path> find_checkpoint(const ResumeOptions& options, const fs::path& run_dir,
                                        parallel::Communicator& comm) {
  const bool is_main = comm.rank() == 0;
  if (options.overwrite) {
    if (is_main) overwrite(run_dir);
    comm.barrier("overwrite");
    return std::nullopt;
  }
  if (options.from != "auto" && options.from != "never") {
    found_by_main(comm, [&] {
      named_checkpoint(options.from, /*verifies=*/true);
      return 0.0;
    });
    return named_checkpoint(options.from, /*verifies=*/false);
  }
  const auto from_step = static_cast<int64_t>(found_by_main(
      comm, [&] { return static_cast<double>(newest_step(run_dir, options.from == "auto")); }));
  if (from_step == 0) return std::nullopt;
  fs::path checkpoint = CheckpointStore(run_dir / "checkpoints").path_of(from_step);
  if (!leads_to_file(checkpoint)) {
    throw DataError(
        fmt::format("rank {} does not see the checkpoint from which rank 0 resumes", comm.rank()),
        checkpoint.string(),
        "put output.dir on a file system that all machines of the run share, under the same path");
  }
  return checkpoint;
}

int64_t rendering_time(const TrainState* saved, int64_t now, parallel::Communicator& comm) {
  const int64_t mine = saved != nullptr ? saved->rendered_at_unix_s : now;
  return static_cast<int64_t>(comm.all_gather({static_cast<double>(mine)})[0][0]);
}

void require_resumable(const fs::path& checkpoint, const TrainState& saved,
                       const nlohmann::ordered_json& identity, const ResumeOptions& options) {
  require_same_identity(saved.identity, identity, checkpoint.string(),
                        {.changed_data = options.allow_changed_data,
                         .backend_change = options.allow_backend_change,
                         .changed_length = length_in(saved.identity).has_value()});
}

int64_t num_steps(const config::RunConfig& config, const data::Dataset* train) {
  if (config.data.streaming) return config.train.max_steps.value();
  return StepPlan(plan_of_steps(config, *train), config.train).total_steps();
}

void require_length(const fs::path& checkpoint, const TrainState& saved,
                    const config::RunConfig& config, const data::Dataset* train,
                    const ResumeOptions& options) {
  const auto was = length_in(saved.identity);
  if (!was || *was == length_of(config.train)) return;
  config::RunConfig before = config;
  before.train.epochs = was->epochs;
  before.train.max_steps = was->max_steps;
  require_length(config.train,
                 {.steps_done = saved.step,
                  .steps_before = num_steps(before, train),
                  .steps_now = num_steps(config, train)},
                 options.allow_changed_length, checkpoint.string());
}

}  // namespace sftrun::train
