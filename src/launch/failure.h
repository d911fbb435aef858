#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/launch/error_file.h"
#include "sftrun/launch/status.h"

namespace sftrun::launch {

/// How one worker ended.
struct WorkerEnd {
  int rank = 0, local_rank = 0;
  pid_t pid = 0;
  int wait_status = 0;                ///< as waitpid gives it
  double time = 0;                    ///< when it was noticed, seconds since the epoch
  std::optional<WorkerError> error;   ///< what it wrote itself
  std::optional<Status> last_status;  ///< the last it said of its progress
  bool was_told_to_end = false;       ///< because another had failed
  bool oom_killed = false;            ///< SIGKILL while the kernel's count of OOM kills rose
  std::filesystem::path log;
  std::vector<std::string> last_lines;
};

bool has_exited_with(const WorkerEnd& end, int code);
/// Stopped on request: 75 or 130.
bool has_stopped(const WorkerEnd& end);
/// Neither done nor stopped on request.
bool has_failed(const WorkerEnd& end);

/// The root cause: among failures that we did not bring about the earliest, by the time in its
/// error file or else when it was noticed; one that only lost a peer comes after every other.
/// nullptr if there is none.
const WorkerEnd* first_failure(const std::vector<WorkerEnd>& ends);

/// What a person reads. Codes 2, 3 and 4 are the worker's own with its own message; everything else
/// is 5.
/// @param stopped_ranks that were ended because of it, `stopped_after_s` later
Error describe_failure(const WorkerEnd& end, const std::vector<int>& stopped_ranks,
                       double stopped_after_s);

}  // namespace sftrun::launch
