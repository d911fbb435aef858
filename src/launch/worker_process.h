#pragma once

#include <deque>
#include <filesystem>
#include <optional>
#include <string>

#include "child_process.h"
#include "failure.h"
#include "line_filter.h"
#include "line_splitter.h"
#include "sftrun/core/activity.h"
#include "sftrun/core/file.h"
#include "sftrun/launch/status.h"

namespace sftrun::launch {

/// What a process has used so far; zeros if /proc does not tell.
struct ProcessUse {
  double cpu_s = 0;
  uint64_t file_bytes = 0;    ///< read and written
  bool is_in_kernel = false;  ///< uninterruptibly, as while a disk works
};

/// One worker: its process, its log file and its last status. If it still runs, the destructor
/// kills and reaps it with its whole group.
class WorkerProcess {
 public:
  struct Options {
    int rank = 0, local_rank = 0;
    LineFilter::Options filter;
    std::filesystem::path log, error_file;
  };
  WorkerProcess(ChildSpec spec, const Options& options, Console& console);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  pid_t pid() const { return child_.pid; }
  int rank() const { return options_.rank; }
  bool is_running() const { return !end_; }
  const std::optional<WorkerEnd>& end() const { return end_; }
  std::optional<Status> take_status();  ///< the newest status, if it was not taken yet
  const std::optional<Status>& last_status() const { return last_status_; }
  /// Whether it may have something to save: it has reported that it trains.
  bool has_trained() const { return has_trained_; }

  const Activity& activity() const { return activity_; }
  bool is_stopped() const;  ///< by a signal or a debugger
  ProcessUse use() const;
  /// The functions in which its training thread is, and where in the kernel; "" if unknown.
  std::string stack() const;
  /// Writes a line, or several, to its log alone.
  void note(std::string_view text);

  /// The open pipes, for poll.
  std::vector<int> descriptors() const;
  /// Reads the pipes without waiting.
  void read_pipes();
  /// Checks whether the worker has ended. If so, kills the rest of its group, reaps it and records
  /// how it ended.   @return whether it has ended since the last call
  bool reap();
  void signal(int signal) const;
  void kill_now();                                 ///< the whole group, at once
  bool was_killed() const { return was_killed_; }  ///< by kill_now

 private:
  void kill_group() const;
  void read_stream(UniqueFd& fd, LineSplitter& splitter, LineFilter& filter, Stream stream);
  void read_status();
  void take_line(std::string_view line, LineFilter& filter, Stream stream);
  void log_line(std::string_view line);

  Options options_;
  Console& console_;
  LineFile log_;
  Activity activity_;
  ChildProcess child_;
  LineSplitter out_, err_, status_;
  LineFilter out_filter_, err_filter_;
  std::deque<std::string> last_lines_;
  std::optional<Status> newest_status_;  ///< until it is taken
  std::optional<Status> last_status_;
  std::optional<WorkerError> error_;  ///< that it has sent
  std::optional<WorkerEnd> end_;
  bool was_killed_ = false, has_trained_ = false;
};

}  // namespace sftrun::launch
