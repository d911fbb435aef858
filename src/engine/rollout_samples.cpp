#include "rollout_samples.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/file.h"

namespace sftrun::engine {

bool keeps_rollout_samples(const config::TrainConfig& train, int64_t step) {
  const int64_t every = std::max<int64_t>(1, train.logging_steps);
  return train.rollouts.num_samples > 0 && (step + train.steps_of_batch()) / every > step / every;
}

void write_rollout_samples(const std::filesystem::path& run_dir, int64_t step,
                           const std::string& lines) {
  const std::filesystem::path file =
      run_dir / "rollouts" / fmt::format("step-{:06}.jsonl", step + 1);
  make_directories(file.parent_path());
  write_file_atomically(file, lines);
}

}  // namespace sftrun::engine
