#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// Status lines from a worker to its launcher: one JSON object per line over the pipe in
/// SFTRUN_STATUS_FD.
///     {"phase":"training","step":17,"total_steps":200,"loss":1.83,"tokens_per_second":48210,"eta_s":71,"memory_bytes":…}
/// Only the newest line matters; a line that does not fit into the pipe is dropped. The error that
/// ends a worker also comes this way (error_file.h).
namespace sftrun::launch {

enum class Phase {
  kLoading,
  kTokenizing,
  kGenerating,
  kJudging,  ///< programs and servers judge the model's answers
  kFitting,  ///< computing the longest micro-batch, before the first step
  kTraining,
  kEvaluating,
  kSaving,
  kCommands  ///< everything is saved; commands of `callbacks` are still running
};

std::string_view phase_name(Phase phase);  ///< "loading", "tokenizing", …
std::optional<Phase> parse_phase(std::string_view name);

struct Status {
  Phase phase = Phase::kLoading;
  int64_t step = 0, total_steps = 0;        ///< total_steps 0: unknown
  std::optional<double> loss;               ///< absent if the loss is not finite
  std::optional<double> tokens_per_second;  ///< of all ranks
  std::optional<double> eta_s;
  std::optional<uint64_t>
      memory_bytes;  ///< peak of this rank: allocator bytes on CUDA, resident bytes on CPU
  std::optional<uint64_t> memory_used_bytes;  ///< in use now: of the GPU, or resident on a CPU
  std::optional<double> gpu_percent;          ///< utilisation of this rank's GPU
  std::optional<double> cpu_percent;          ///< of one processor; 200 is two
  bool operator==(const Status&) const = default;
};

std::string to_json_line(const Status& status);  ///< without the newline
/// nullopt if `line` is not a status line.
std::optional<Status> parse_status(std::string_view line);

/// The worker's end of the pipe. Never blocks, never throws, never raises SIGPIPE; without a
/// launcher it does nothing. Not thread-safe. Does not own the descriptor.
class StatusWriter {
 public:
  StatusWriter();  ///< descriptor from SFTRUN_STATUS_FD
  explicit StatusWriter(int fd);
  /// @return whether the line was written (false: no launcher, pipe full or closed).
  bool write(const Status& status) noexcept;

 private:
  int fd_ = -1;
};

}  // namespace sftrun::launch
