#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// A command of the user that is started at events of a run (`callbacks`).
namespace sftrun::launch {

struct EventCommandOptions {
  std::string command;              ///< for `sh -c`; empty: nothing is started
  std::vector<std::string> events;  ///< that start it
  double timeout_s = 60;            ///< after which a command is ended
  std::filesystem::path run_dir;    ///< has logs/callbacks.log, with what the commands print
  /// Asked from time to time, by another thread: true ends the commands at once. Empty: never.
  std::function<bool()> should_end = {};
  /// The program that becomes the guard of a command (command_guard.h): this one.
  std::string guard = "/proc/self/exe";
};

/// What happened. Its details are in the JSON object that the command reads.
struct Event {
  std::string name;  ///< "checkpoint", "evaluation", "end", "failure"
  int64_t step = 0;  ///< optimizer steps done
  nlohmann::ordered_json details = nlohmann::ordered_json::object();
};

/// Starts the commands one after the other, from a thread of its own, so that nobody waits for
/// them. A command that fails, or that is ended because it takes too long, is logged and does
/// nothing else. A command
///   - is run by `sh -c` in the directory of the run's start, in a process group of its own, and
///     inherits no open files;
///   - is killed with everything that it has started if this process ends in any way while it runs,
///     even by kill -9;
///   - reads one line of JSON from its standard input: event, step, run_dir, and the details;
///   - has SFTRUN_EVENT, SFTRUN_STEP and SFTRUN_RUN_DIR in its environment, and no variables by
///     which launchers tell a process that it is a rank: it may run sftrun itself.
/// `tell` is thread-safe.
class EventCommands {
 public:
  explicit EventCommands(EventCommandOptions options);
  /// As `finish`.
  ~EventCommands();
  EventCommands(const EventCommands&) = delete;
  EventCommands& operator=(const EventCommands&) = delete;

  /// Returns at once. If too many commands wait already, the event is left out with a warning.
  void tell(Event event);
  /// Waits for the commands, no longer than `timeout_s`, and ends what is left.
  void finish();

 private:
  class Queue;
  EventCommandOptions options_;
  std::unique_ptr<Queue> queue_;  // null: nothing is started
};

}  // namespace sftrun::launch
