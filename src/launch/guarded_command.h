#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "command_guard.h"
#include "unique_fd.h"

namespace sftrun::launch {

/// The environment of a command of the user: this process's, without the variables by which launchers tell a process
/// that it is a rank, and with `more`. "NAME=value" each.
std::vector<std::string> command_environment(const std::map<std::string, std::string>& more);

/// Descriptors that become the standard streams of a command. They stay the caller's.
struct CommandStreams {
  int in = -1, out = -1, error = -1;
};

/// What happens to the processes that a command leaves in the background when it ends by itself.
enum class CommandRest { kGoesOn, kIsKilled };

/// A command of the user that runs, by `sh -c`, under its guard (sftrun/launch/command_guard.h), a process of this
/// program: a fork of this one, which may be large, would do the same at the cost of its memory. The command is killed
/// with everything that it has started when this process ends in any way.
class GuardedCommand {
 public:
  /// @param guard the program that becomes the guard: this one   @throws DeviceError
  GuardedCommand(const std::string& guard, const std::string& command,
                 std::vector<std::string> variables, const CommandStreams& streams,
                 CommandRest rest = CommandRest::kGoesOn);
  /// Kills the command if it runs.
  ~GuardedCommand();
  GuardedCommand(const GuardedCommand&) = delete;
  GuardedCommand& operator=(const GuardedCommand&) = delete;

  /// Without waiting.
  bool has_ended();
  /// For poll(2): it hangs up when the command has ended.
  int socket() const { return socket_.get(); }
  /// Ends it, with what it has started.
  void end(GuardOrder order);
  /// Whether it ended by itself with exit code 0.   @pre it has ended
  bool succeeded() const { return end_ && end_->wait_status == 0; }
  /// "ended with exit code 3"; "" for success.   @pre it has ended
  /// @throws DeviceError if it could not be started
  std::string failure() const;

 private:
  void tell_guard(GuardOrder order) const;
  bool wait_for_guard(int options);
  template <class Message>
  std::optional<Message> receive() const;

  UniqueFd socket_;
  pid_t guard_ = 0;                    // 0: it has ended
  std::optional<CommandStart> start_;  // both: once the guard has ended
  std::optional<CommandEnd> end_;
};

}  // namespace sftrun::launch
