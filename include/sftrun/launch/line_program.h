#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// A program of the user that keeps running and answers lines.
namespace sftrun::launch {

struct LineProgramOptions {
  std::string command;                                ///< for `sh -c`
  std::map<std::string, std::string> variables = {};  ///< added to its environment
  /// Asked some times a second: true ends a call of `ask` at once. Empty: never.
  std::function<bool()> should_stop = {};
  /// Gets each line of its standard error, without its end. Empty: nothing does.
  std::function<void(std::string_view)> on_error_line = {};
  /// The program that becomes the guard of the command (command_guard.h): this one.
  std::string guard = "/proc/self/exe";
};

/// What a program answered to some lines.
struct LineAnswers {
  enum class End {
    kComplete,  ///< one answer to each line
    kEnded,     ///< the program ended, or could not be started
    kLate,      ///< it did not answer in time, and was killed
    kTooMany,   ///< it wrote more than one line for each, or one that is too long; it was killed
    kStopped    ///< should_stop; it was killed
  };
  End end = End::kComplete;
  std::vector<std::string> lines = {};  ///< without line ends; complete only if `end` says so
  std::string what = {};                ///< "ended with exit code 3"; empty if complete
  std::string extra = {};               ///< the beginning of what was too much (kTooMany)
  std::string last_errors = {};         ///< the last lines of its standard error
};

/// Runs a command by `sh -c` and exchanges lines with it: for each line on its standard input it writes one line
/// to its standard output, and flushes it. The program is started by the first call of `ask`, and again where it has
/// ended or was killed; that it ends with exit code 0 after its answers is no failure, also where it is just ending
/// when the next call gives it lines: another process answers these. It
///   - has a process group of its own and inherits no open files;
///   - is killed with everything that it has started if this process ends in any way, even by kill -9;
///   - leaves nothing: what it has started is killed when it ends, also in sessions of their own;
///   - gets no variables by which launchers tell a process that it is a rank, and PYTHONUNBUFFERED=1, with which
///     Python writes each line at once.
/// Reading, writing and its standard error are served together, so that no pipe that is full holds up the other side.
/// Not thread-safe.
class LineProgram {
 public:
  explicit LineProgram(LineProgramOptions options);
  /// As `finish`, without its result.
  ~LineProgram();
  LineProgram(const LineProgram&) = delete;
  LineProgram& operator=(const LineProgram&) = delete;

  /// @param lines without line ends
  LineAnswers ask(std::span<const std::string> lines, double timeout_s);
  /// Closes the program's standard input, and ends it where it does not end within two seconds.
  /// @return what it wrote beside its answers, or how it failed
  LineAnswers finish();

 private:
  class Running;
  LineProgramOptions options_;
  std::unique_ptr<Running> running_;  // null: it is not started, or has ended
};

}  // namespace sftrun::launch
