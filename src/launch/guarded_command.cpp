#include "guarded_command.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "c_strings.h"
#include "pipe_write.h"
#include "sftrun/core/errno_fix.h"
#include "sftrun/core/error.h"
#include "sftrun/launch/command_guard.h"
#include "sftrun/launch/worker_env.h"
#include "spawn_settings.h"

namespace sftrun::launch {
namespace {

std::pair<UniqueFd, UniqueFd> make_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    const int error = errno;
    throw DeviceError(std::string("cannot be started: ") + std::strerror(error), "socketpair",
                      fix_for_descriptors(error));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

[[noreturn]] void fail_to_start_command(int error, const std::string& program) {
  throw DeviceError(std::string("cannot be started: ") + std::strerror(error), program);
}

}  // namespace

std::vector<std::string> command_environment(const std::map<std::string, std::string>& more) {
  Environment environment = current_environment();
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
        "MASTER_PORT", "SFTRUN_STATUS_FD", "SFTRUN_ACTIVITY_FD", "SFTRUN_ERROR_FILE"})
    environment.erase(name);
  for (const auto& [name, value] : more) environment[name] = value;
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment)
    variables.push_back(fmt::format("{}={}", name, value));
  return variables;
}

GuardedCommand::GuardedCommand(const std::string& guard, const std::string& command,
                               std::vector<std::string> variables, const CommandStreams& streams,
                               CommandRest rest) {
  auto [own, of_guard] = make_sockets();
  socket_ = std::move(own);
  // Before the guard starts: a command may end before the guard reads what comes later.
  if (rest == CommandRest::kIsKilled) tell_guard(GuardOrder::kKillRest);
  SpawnSettings settings;
  settings.block_signals(true);
  settings.pass(streams.in, STDIN_FILENO);
  settings.pass(streams.out, STDOUT_FILENO);
  settings.pass(streams.error, STDERR_FILENO);
  settings.pass(of_guard.get(), kGuardSocket);
  settings.close_from(kGuardSocket + 1);
  const int error = settings.spawn(guard.c_str(), {"sftrun-guard", kCommandGuard, command},
                                   c_strings(variables).data(), guard_);
  if (error != 0) fail_to_start_command(error, guard);
}

GuardedCommand::~GuardedCommand() {
  if (guard_ > 0) end(GuardOrder::kKill);
}

bool GuardedCommand::has_ended() {
  return guard_ == 0 || wait_for_guard(WNOHANG);
}

void GuardedCommand::end(GuardOrder order) {
  if (guard_ == 0) return;
  tell_guard(order);
  wait_for_guard(0);
}

std::string GuardedCommand::failure() const {
  if (start_ && start_->error != 0) fail_to_start_command(start_->error, "/bin/sh");
  if (!end_) return "was killed: its guard, another process of sftrun, was";
  if (WIFSIGNALED(end_->wait_status))
    return fmt::format("was killed by signal {}", WTERMSIG(end_->wait_status));
  const int code = WEXITSTATUS(end_->wait_status);
  return code == 0 ? "" : fmt::format("ended with exit code {}", code);
}

void GuardedCommand::tell_guard(GuardOrder order) const {
  const std::string_view text(reinterpret_cast<const char*>(&order), sizeof order);
  write_without_sigpipe(socket_.get(), text);  // fails if it has just ended
}

/// @return whether the guard has ended
bool GuardedCommand::wait_for_guard(int options) {
  pid_t ended = 0;
  while ((ended = ::waitpid(guard_, nullptr, options)) < 0 && errno == EINTR) {
  }
  if (ended == 0) return false;
  guard_ = 0;
  start_ = receive<CommandStart>();
  if (start_ && start_->error == 0) end_ = receive<CommandEnd>();
  // The guard was killed. Who made itself a process group of its own is not found any more.
  if (start_ && start_->error == 0 && !end_) ::kill(-start_->command, SIGKILL);
  return true;
}

template <class Message>
std::optional<Message> GuardedCommand::receive() const {
  Message message;
  const ssize_t bytes = ::recv(socket_.get(), &message, sizeof message, MSG_DONTWAIT);
  return bytes == sizeof message ? std::optional(message) : std::nullopt;
}

}  // namespace sftrun::launch
