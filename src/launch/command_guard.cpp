#include "sftrun/launch/command_guard.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cctype>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>

#include "command_guard.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "spawn_settings.h"

namespace sftrun::launch {
namespace {

constexpr int kPollMs = 10;

/// The parent of a process; 0 if it has ended. /proc/…/stat is "4242 (name) S 1 …", and a name may have
/// parentheses.
pid_t parent_of(const std::filesystem::path& process) {
  std::string stat;
  try {
    stat = read_text_file(process / "stat");
  } catch (const Error&) {
    return 0;
  }
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos || name_end + 4 > stat.size()) return 0;
  return static_cast<pid_t>(std::strtol(stat.c_str() + name_end + 4, nullptr, 10));
}

/// The processes that this one has started, and theirs. Those whose parents have ended are this one's own
/// children then: it is a subreaper.
std::vector<pid_t> descendants() {
  std::map<pid_t, pid_t> parents;
  for (const std::filesystem::path& entry : readable_entries_of("/proc")) {
    const std::string name = entry.filename().string();
    if (std::isdigit(static_cast<unsigned char>(name.front())) != 0)
      parents[std::stoi(name)] = parent_of(entry);
  }
  std::vector<pid_t> found;
  for (const auto& [pid, parent] : parents) {
    pid_t above = parent;
    for (size_t depth = 0; above > 1 && above != ::getpid() && depth < parents.size(); ++depth) {
      const auto next = parents.find(above);
      above = next == parents.end() ? 0 : next->second;
    }
    if (above == ::getpid()) found.push_back(pid);
  }
  return found;
}

class Guard {
 public:
  /// @param kills_rest what the command leaves is killed
  Guard(pid_t command, bool kills_rest) : command_(command), kills_rest_(kills_rest) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    children_ = ::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  }

  /// Waits for the command, or for an order to end it.   @return its wait status
  int wait() {
    while (!has_ended()) {
      pollfd sources[] = {{kGuardSocket, POLLIN, 0}, {children_, POLLIN, 0}};
      ::poll(sources, 2, -1);
      signalfd_siginfo info;
      while (::read(children_, &info, sizeof info) > 0) {
      }
      if (sources[0].revents != 0) {
        obey(read_order());
        return status_.value_or(SIGKILL);
      }
    }
    if (kills_rest_) obey(GuardOrder::kKill);
    return status_.value_or(SIGKILL);
  }

 private:
  static GuardOrder read_order() {
    auto order = GuardOrder::kKill;
    if (::read(kGuardSocket, &order, sizeof order) != sizeof order) return GuardOrder::kKill;
    return order;
  }

  void obey(GuardOrder order) {
    if (order == GuardOrder::kEnd) {
      signal_all(SIGTERM);
      wait_until(monotonic_seconds() + kCommandGraceS,
                 [&] { return (has_ended() && descendants().empty()) || is_alone(); });
    }
    constexpr double kMaxKillS = 5;  // what the kernel itself holds up does not die
    wait_until(monotonic_seconds() + kMaxKillS, [&] {
      signal_all(SIGKILL);
      has_ended();
      return descendants().empty();
    });
  }

  /// Whether the run has gone, or wants an end at once.
  static bool is_alone() {
    pollfd source{kGuardSocket, POLLIN, 0};
    return ::poll(&source, 1, 0) > 0;
  }

  template <class Condition>
  static void wait_until(double end_s, Condition condition) {
    while (!condition() && monotonic_seconds() < end_s) ::poll(nullptr, 0, kPollMs);
  }

  /// Once to each: a second SIGTERM ends many programs at once.
  void signal_all(int signal) const {
    ::kill(-command_, signal);  // also where /proc cannot be read
    for (const pid_t pid : descendants())
      if (::getpgid(pid) != command_) ::kill(pid, signal);
  }

  /// Takes the ends of children, its own and those that were left to it.
  bool has_ended() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
      if (pid == command_) status_ = status;
    return status_.has_value();
  }

  pid_t command_;
  bool kills_rest_;
  int children_ = -1;
  std::optional<int> status_;  // nullopt: the command runs
};

/// Takes the order kKillRest, which is there before this process starts.   @return whether it was given
bool take_kill_rest() {
  auto order = GuardOrder::kKill;
  constexpr int kPeek = MSG_PEEK | MSG_DONTWAIT;
  if (::recv(kGuardSocket, &order, sizeof order, kPeek) != sizeof order) return false;
  if (order != GuardOrder::kKillRest) return false;
  return ::recv(kGuardSocket, &order, sizeof order, 0) == sizeof order;
}

template <class Message>
void tell_run(const Message& message) {
  ::send(kGuardSocket, &message, sizeof message, MSG_NOSIGNAL);
}

}  // namespace

void guard_command(const std::string& command) {
  ::prctl(PR_SET_NAME, "sftrun-guard");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::signal(SIGCHLD, SIG_DFL);
  SpawnSettings settings;
  settings.close_from(kGuardSocket);
  const bool kills_rest = take_kill_rest();
  CommandStart start;
  start.error = settings.spawn("/bin/sh", {"sh", "-c", command}, environ, start.command);
  tell_run(start);
  if (start.error == 0)
    tell_run(CommandEnd{.wait_status = Guard(start.command, kills_rest).wait()});
  ::_exit(0);
}

}  // namespace sftrun::launch
