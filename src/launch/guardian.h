#pragma once

#include <sys/types.h>

#include "unique_fd.h"

namespace sftrun::launch {

/// Ends the workers' process groups when this process ends without doing so itself, even by kill
/// -9: a tiny process in a session of its own that reads a pipe until its end. PR_SET_PDEATHSIG
/// already takes the workers; this takes what they started.
class Guardian {
 public:
  Guardian();
  ~Guardian();  ///< closes the pipe and waits: groups still watched are killed
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
