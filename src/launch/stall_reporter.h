#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/core/stall.h"
#include "worker_process.h"

namespace sftrun::launch {

/// Says which workers of this machine the others wait for, and in which functions they are. It reads
/// their shared memory and /proc, so that it also sees workers that hang or are stopped.
class StallReporter {
 public:
  /// @param stall_s time without progress   @param sees_all_ranks false: ranks of other machines
  /// may be the cause, and their stall watch names them; here only stopped workers are named
  StallReporter(double stall_s, bool sees_all_ranks);

  double period_s() const { return period_s_; }  ///< between two calls of `check`
  /// Call it every `period_s`.   @param now monotonic
  /// @return a report, where one is due: a stall that two checks saw, and again after twice the time
  std::optional<std::string> check(const std::vector<std::unique_ptr<WorkerProcess>>& workers,
                                   double now);
  /// The stall that lasted until shortly before `now`; "": none.
  std::string recent(double now) const;
  /// The workers were stopped by this process, and go on.
  void restart() { sightings_ = 0; }

 private:
  std::optional<Stall> find(const std::vector<std::unique_ptr<WorkerProcess>>& workers) const;
  std::string report(const Stall& stall,
                     const std::vector<std::unique_ptr<WorkerProcess>>& workers) const;

  double stall_s_, period_s_;
  bool sees_all_ranks_;
  StallReports reports_;
  int sightings_ = 0;  ///< checks in a row that saw a stall
  double checked_ = 0, seen_ = 0;
  std::string last_;
};

}  // namespace sftrun::launch
