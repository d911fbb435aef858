#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/launch/error_file.h"
#include "sftrun/launch/status.h"
#include "sftrun/launch/supervisor.h"

namespace sftrun::launch {

/// How one worker ended.
struct WorkerEnd {
  int rank = 0, local_rank = 0;
  pid_t pid = 0;
  int wait_status = 0;                ///< from waitpid
  double time = 0;                    ///< when it was noticed, seconds since the epoch
  std::optional<WorkerError> error;   ///< its error file
  std::optional<Status> last_status;  ///< its last status line
  bool was_asked_to_stop = false;     ///< because another worker had failed
  bool oom_killed = false;  ///< SIGKILL, and the kernel's count of OOM kills has increased
  std::filesystem::path log;
  std::vector<std::string> last_lines;
};

bool has_exited_with(const WorkerEnd& end, int code);
/// Stopped on request: 75 or 130.
bool has_stopped(const WorkerEnd& end);
/// Failed: neither done nor stopped on request.
bool has_failed(const WorkerEnd& end);

/// The root cause: the earliest failure that the launcher did not cause, by the time in its error
/// file, or else the time when it was noticed. A worker that only lost a peer comes after all
/// others. nullptr if there is none.
const WorkerEnd* first_failure(const std::vector<WorkerEnd>& ends);

/// The error to report. With codes 2, 3 and 4 it is the worker's own message; all other failures
/// have code 5.
/// @param stopped_ranks ranks that were stopped because of it, `stopped_after_s` later
/// @param stall which ranks had kept the others waiting until then; "": none
/// @param memory_fix what to do if the kernel ended the worker for its memory; "": general advice
Error describe_failure(const WorkerEnd& end, const std::vector<int>& stopped_ranks,
                       double stopped_after_s, const std::string& stall = {},
                       const std::string& memory_fix = {}, const WorkWords& words = {});

}  // namespace sftrun::launch
