#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "worker_process.h"

namespace sftrun::launch {

/// Tells whether workers that were asked to stop are on their way to a checkpoint, however slow the
/// machine is, or hang. Signs of progress of a worker:
/// - its record of what it does has changed;
/// - it writes a checkpoint, for at most `kQuietSave_s` since its record changed;
/// - it does not wait for other ranks, and has used the processor or read or written files, or the
///   kernel does so for it;
/// - it waits for a rank of another machine. The communicator limits that time.
class StopProgress {
 public:
  static constexpr double kQuietSave_s = 600;

  /// @param grace_s time without progress after which a worker counts as hanging
  /// @param sees_all_ranks false: there are ranks on other machines
  StopProgress(double grace_s, bool sees_all_ranks)
      : grace_s_(grace_s), sees_all_ranks_(sees_all_ranks) {}

  double period_s() const;  ///< between two calls of `last`
  /// @param now monotonic   @return when a worker last made progress, monotonic
  double last(const std::vector<std::unique_ptr<WorkerProcess>>& workers, double now);

 private:
  /// What a process had used when it last showed progress.
  struct Used {
    double cpu_s = 0;
    uint64_t file_bytes = 0;
  };
  double last_of(const WorkerProcess& worker, double now);
  bool has_worked(const WorkerProcess& worker);

  double grace_s_;
  bool sees_all_ranks_;
  std::map<int, Used> used_;  // by rank
  double last_ = 0;
};

}  // namespace sftrun::launch
