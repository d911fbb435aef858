#pragma once

#include <sys/types.h>

#include "unique_fd.h"

namespace sftrun::launch {

/// Kills the workers' process groups if this process ends without doing so, even after kill -9: a
/// small process in its own session that reads a pipe until its end. PR_SET_PDEATHSIG already kills
/// the workers; this kills the processes that they started.
class Guardian {
 public:
  Guardian();
  ~Guardian();  ///< closes the pipe and waits: groups that are still registered are killed
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void watch(pid_t group) { tell(group); }
  void release(pid_t group) { tell(-group); }
  pid_t pid() const { return pid_; }

 private:
  void tell(pid_t message);

  UniqueFd pipe_;
  pid_t pid_ = 0;
};

}  // namespace sftrun::launch
