#include "sftrun/launch/event_commands.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "command_guard.h"
#include "pipe_write.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/launch/command_guard.h"
#include "sftrun/launch/worker_env.h"
#include "spawn_settings.h"
#include "unique_fd.h"

namespace sftrun::launch {
namespace {

std::string describe_event(const Event& event) {
  return fmt::format("the event `{}` (step {})", event.name, event.step);
}

/// A file in memory with one line, to be read from its beginning.
UniqueFd file_with_line(const std::string& text) {
  UniqueFd file(::memfd_create("sftrun-event", MFD_CLOEXEC));
  const std::string line = text + "\n";
  const bool is_written =
      file && ::write(file.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
      ::lseek(file.get(), 0, SEEK_SET) == 0;
  if (!is_written)
    throw DeviceError(std::string("cannot pass the event: ") + std::strerror(errno), "memfd");
  return file;
}

UniqueFd open_log(const std::filesystem::path& run_dir) {
  make_directories(run_dir / "logs");
  const std::filesystem::path path = run_dir / "logs" / "callbacks.log";
  constexpr mode_t kMode = 0666;
  return UniqueFd(open_for_writing(path, O_WRONLY | O_CREAT | O_APPEND, kMode));
}

/// The environment without what makes a process a rank.
std::vector<std::string> variables_of(const Event& event, const std::filesystem::path& run_dir) {
  Environment environment = current_environment();
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
        "MASTER_PORT", "SFTRUN_STATUS_FD", "SFTRUN_ACTIVITY_FD", "SFTRUN_ERROR_FILE"})
    environment.erase(name);
  environment["SFTRUN_EVENT"] = event.name;
  environment["SFTRUN_STEP"] = std::to_string(event.step);
  environment["SFTRUN_RUN_DIR"] = run_dir.string();
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment)
    variables.push_back(fmt::format("{}={}", name, value));
  return variables;
}

/// A command that runs, under its guard (sftrun/launch/command_guard.h), a process of this program: a
/// fork of this one, which may be large, would do the same at the cost of its memory.
class RunningCommand {
 public:
  RunningCommand(const EventCommandOptions& options, const Event& event, int log) {
    const std::filesystem::path run_dir = absolute_path(options.run_dir);
    nlohmann::ordered_json json = {
        {"event", event.name}, {"step", event.step}, {"run_dir", run_dir.string()}};
    json.update(event.details);
    const UniqueFd in =
        file_with_line(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    auto [own, of_guard] = make_sockets();
    SpawnSettings settings;
    settings.block_signals(true);
    settings.pass(in.get(), STDIN_FILENO);
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) settings.pass(log, stream);
    settings.pass(of_guard.get(), kGuardSocket);
    settings.close_from(kGuardSocket + 1);
    std::vector<std::string> variables = variables_of(event, run_dir);
    const int error =
        settings.spawn(options.guard.c_str(), {"sftrun-guard", kCommandGuard, options.command},
                       c_strings(variables).data(), guard_);
    if (error != 0) fail_to_start(error, options.guard);
    socket_ = std::move(own);
  }
  /// Kills the command if it runs.
  ~RunningCommand() {
    if (guard_ > 0) end(GuardOrder::kKill);
  }
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;

  /// Waits a moment for it.
  bool has_ended() {
    constexpr auto kMoment = std::chrono::milliseconds(10);
    if (guard_ > 0 && wait_for_guard(WNOHANG)) return true;
    std::this_thread::sleep_for(kMoment);
    return false;
  }

  /// Ends it, with what it has started.
  void end(GuardOrder order) {
    const std::string_view text(reinterpret_cast<const char*>(&order), sizeof order);
    write_without_sigpipe(socket_.get(), text);  // fails if it has just ended
    wait_for_guard(0);
  }

  /// "ended with exit code 3"; "" for success.   @pre it has ended
  std::string failure() const {
    if (start_ && start_->error != 0) fail_to_start(start_->error, "/bin/sh");
    if (!end_) return "was killed: its guard, another process of sftrun, was";
    if (WIFSIGNALED(end_->wait_status))
      return fmt::format("was killed by signal {}", WTERMSIG(end_->wait_status));
    const int code = WEXITSTATUS(end_->wait_status);
    return code == 0 ? "" : fmt::format("ended with exit code {}", code);
  }

 private:
  static std::pair<UniqueFd, UniqueFd> make_sockets() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      const int error = errno;
      throw DeviceError(std::string("cannot be started: ") + std::strerror(error), "socketpair",
                        fix_for_descriptors(error));
    }
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }

  [[noreturn]] static void fail_to_start(int error, const std::string& program) {
    throw DeviceError(std::string("cannot be started: ") + std::strerror(error), program);
  }

  /// @return whether the guard has ended
  bool wait_for_guard(int options) {
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
  std::optional<Message> receive() const {
    Message message;
    const ssize_t bytes = ::recv(socket_.get(), &message, sizeof message, MSG_DONTWAIT);
    return bytes == sizeof message ? std::optional(message) : std::nullopt;
  }

  UniqueFd socket_;
  pid_t guard_ = 0;                    // 0: it has ended
  std::optional<CommandStart> start_;  // both: once the guard has ended
  std::optional<CommandEnd> end_;
};

}  // namespace

class EventCommands::Queue {
 public:
  explicit Queue(const EventCommandOptions& options)
      : options_(options), thread_([this] { run(); }) {}
  ~Queue() {
    {
      const std::scoped_lock lock(mutex_);
      is_closed_ = true;
      ends_at_s_ = monotonic_seconds() + options_.timeout_s;
    }
    changed_.notify_all();
    thread_.join();
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void add(Event event) {
    constexpr size_t kMaxWaiting = 32;
    const std::scoped_lock lock(mutex_);
    if (waiting_.size() >= kMaxWaiting) {
      log::warn("callbacks.command is not started for {}: {} earlier ones wait for a slow command",
                describe_event(event), waiting_.size());
      return;
    }
    waiting_.push_back(std::move(event));
    changed_.notify_all();
  }

 private:
  void run() {
    while (const auto event = next()) {
      try {
        run_command(*event);
      } catch (const std::exception& error) {
        log::warn("callbacks.command for {}: {}", describe_event(*event),
                  split(error.what(), '\n').front());
      }
    }
  }

  std::optional<Event> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_closed_ || !waiting_.empty(); });
    if (waiting_.empty()) return std::nullopt;
    const bool is_told = is_told_to_end();
    if (is_told || (is_closed_ && monotonic_seconds() >= ends_at_s_)) {
      log::warn("callbacks.command was not started for {}{}: {}", describe_event(waiting_.front()),
                waiting_.size() > 1
                    ? fmt::format(" and {} after it", counted(waiting_.size() - 1, "event"))
                    : "",
                is_told ? "the run was told to end at once"
                        : "there was no time left (callbacks.timeout)");
      return std::nullopt;
    }
    Event event = std::move(waiting_.front());
    waiting_.pop_front();
    return event;
  }

  void run_command(const Event& event) {
    const UniqueFd log = open_log(options_.run_dir);
    RunningCommand command(options_, event, log.get());
    const double started_s = monotonic_seconds();
    while (!command.has_ended()) {
      if (is_told_to_end()) {
        command.end(GuardOrder::kKill);
        log::warn("callbacks.command for {} was ended: the run was told to end at once",
                  describe_event(event));
        return;
      }
      if (!is_late(started_s)) continue;
      command.end(GuardOrder::kEnd);
      log::warn("callbacks.command for {} was ended after {} (callbacks.timeout {})",
                describe_event(event), format_duration(monotonic_seconds() - started_s),
                format_duration(options_.timeout_s));
      return;
    }
    if (const std::string failure = command.failure(); !failure.empty())
      log::warn("callbacks.command for {} {}; see {}", describe_event(event), failure,
                (options_.run_dir / "logs" / "callbacks.log").string());
  }

  bool is_told_to_end() const { return options_.should_end && options_.should_end(); }

  bool is_late(double started_s) {
    const std::scoped_lock lock(mutex_);
    const double now = monotonic_seconds();
    return now - started_s >= options_.timeout_s || (is_closed_ && now >= ends_at_s_);
  }

  const EventCommandOptions& options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> waiting_;
  bool is_closed_ = false;
  double ends_at_s_ = 0;  // of a closed queue
  std::thread thread_;    // last: it uses the other members
};

EventCommands::EventCommands(EventCommandOptions options) : options_(std::move(options)) {
  if (!options_.command.empty() && !options_.events.empty())
    queue_ = std::make_unique<Queue>(options_);
}

EventCommands::~EventCommands() = default;

void EventCommands::tell(Event event) {
  const auto& events = options_.events;
  if (queue_ && std::find(events.begin(), events.end(), event.name) != events.end())
    queue_->add(std::move(event));
}

void EventCommands::finish() {
  queue_.reset();
}

}  // namespace sftrun::launch
