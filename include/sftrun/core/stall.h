#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sftrun/core/activity.h"

/// Which ranks do not come to a collective that the others wait in.
namespace sftrun {

/// "rank 3", "ranks 1 and 2", "ranks 0-2 and 5", "ranks 0-63 and 128 more".
std::string name_ranks(const std::vector<int>& ranks);

/// A rank as another sees it.
struct RankView {
  int rank = 0;
  ActivityState state;
  bool is_stopped = false;  ///< by a signal (SIGSTOP, SIGTSTP), or by a debugger
  bool is_silent = false;   ///< no heartbeat: stopped, or its machine is gone
};

struct Stall {
  std::vector<int> guilty;  ///< the ranks that the others wait for; empty: all wait
  double seconds = 0;       ///< since nothing has moved
  /// "rank 3 has been in the data loader for 42 s (step 1580); ranks 0-2 wait in all-reduce"
  std::string text;
};

/// Finds what has kept ranks waiting for at least `stall_s`: ranks that do not wait, are stopped or
/// are silent; or all ranks, where each waits for the others.   @return nullopt: nothing
std::optional<Stall> find_stall(const std::vector<RankView>& ranks, double stall_s);

/// The time without progress after which a stall is reported: what is configured, but early enough
/// that the report comes before the collectives time out.
double stall_report_s(double configured_s, double timeout_s);

/// When a stall that lasts is reported again: after twice the time.
class StallReports {
 public:
  explicit StallReports(double first_s) : first_s_(first_s), next_s_(first_s) {}
  bool is_due(double seconds) {
    if (seconds < next_s_) return false;
    next_s_ = 2 * seconds;
    return true;
  }
  void reset() { next_s_ = first_s_; }

 private:
  double first_s_, next_s_;
};

}  // namespace sftrun
