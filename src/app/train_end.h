#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "sftrun/config/run_config.h"
#include "sftrun/core/error.h"
#include "sftrun/launch/supervisor.h"

/// What `sftrun train` does when a run has ended, in whichever way.
namespace sftrun::app {

/// How a training has ended.
struct TrainEnd : launch::SuperviseEnd {
  std::string error;  ///< as the terminal had it; empty: it has not failed, or that is not known

  bool has_failed() const {
    const auto is = [this](ExitCode code) { return exit_code == static_cast<int>(code); };
    return !is(ExitCode::kDone) && !is(ExitCode::kStopped) && !is(ExitCode::kInterrupted);
  }
  std::string status() const {
    if (has_failed()) return "failed";
    return exit_code == static_cast<int>(ExitCode::kInterrupted) ? "interrupted" : "stopped";
  }
};

/// Writes report.html when a run has ended in any way. A report that cannot be written ends no run.
class ReportAtEnd {
 public:
  explicit ReportAtEnd(std::filesystem::path run_dir) : run_dir_(std::move(run_dir)) {}
  ~ReportAtEnd();
  ReportAtEnd(const ReportAtEnd&) = delete;
  ReportAtEnd& operator=(const ReportAtEnd&) = delete;

 private:
  std::filesystem::path run_dir_;
};

/// Without "error: ".
std::string text_of_error(std::string_view what);

/// Runs a training, then starts the user's command for its end (`callbacks`). While that runs, a stop
/// ends the command at once.   @return the exit code of the training
int with_end_event(const config::RunConfig& config, const std::function<TrainEnd()>& train);

}  // namespace sftrun::app
