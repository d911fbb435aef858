#include "sftrun/launch/event_commands.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "pipe_write.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/launch/worker_env.h"
#include "unique_fd.h"

namespace sftrun::launch {
namespace {

constexpr double kGraceS = 2;  // from SIGTERM to SIGKILL

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
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, kMode));
  if (!file)
    throw DeviceError(std::string("cannot be written: ") + std::strerror(errno), path.string());
  return file;
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
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

/// What a child does with its descriptors and signals before it becomes a program.
class SpawnSettings {
 public:
  SpawnSettings(int in, int out) {
    ::posix_spawn_file_actions_init(&files_);
    ::posix_spawn_file_actions_adddup2(&files_, in, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&files_, out, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files_, out, STDERR_FILENO);
    ::posix_spawn_file_actions_addclosefrom_np(&files_, STDERR_FILENO + 1);
    ::posix_spawnattr_init(&attributes_);
    set_flags(POSIX_SPAWN_SETPGROUP);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    sigset_t signals;
    sigemptyset(&signals);
    ::posix_spawnattr_setsigmask(&attributes_, &signals);
    // What this process itself has changed. Others that it was started to ignore stay ignored.
    for (const int number : {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM}) sigaddset(&signals, number);
    ::posix_spawnattr_setsigdefault(&attributes_, &signals);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&files_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  /// In a session of its own, without any signal but SIGKILL.
  SpawnSettings& hidden() {
    set_flags(POSIX_SPAWN_SETSID);
    sigset_t all;
    sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &all);
    return *this;
  }

  /// Runs `sh` with the arguments.
  pid_t spawn(std::vector<std::string> arguments, std::vector<std::string> variables) const {
    constexpr const char* kShell = "/bin/sh";
    pid_t pid = 0;
    const int error = ::posix_spawn(&pid, kShell, &files_, &attributes_,
                                    pointers_to(arguments).data(), pointers_to(variables).data());
    if (error != 0)
      throw DeviceError(std::string("cannot be started: ") + std::strerror(error), kShell);
    return pid;
  }

 private:
  void set_flags(int place) {
    const int flags = place | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
    ::posix_spawnattr_setflags(&attributes_, static_cast<short>(flags));
  }

  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

/// Kills the process group of a command if this process ends while the command runs: a shell that
/// reads a pipe to its end, which the kernel brings about. (PR_SET_PDEATHSIG would spare what the
/// command has started.) A fork of this process, which may be large, would do the same at the cost
/// of its memory.
class CommandGuard {
 public:
  explicit CommandGuard(int log) {
    constexpr const char* kScript =
        "read -r group || exit 0; read -r ended && exit 0; kill -9 \"-$group\" 2>/dev/null";
    Pipe pipe = make_pipe();
    pid_ = SpawnSettings(pipe.read.get(), log)
               .hidden()
               .spawn({"sh", "-c", kScript, "sftrun-guard"}, {});
    pipe_ = std::move(pipe.write);
  }
  /// The command has ended, or could not be started.
  ~CommandGuard() {
    if (is_watching_) tell("ended");
    pipe_.reset();
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  CommandGuard(const CommandGuard&) = delete;
  CommandGuard& operator=(const CommandGuard&) = delete;

  void watch(pid_t group) {
    tell(std::to_string(group));
    is_watching_ = true;
  }

 private:
  void tell(const std::string& line) { write_without_sigpipe(pipe_.get(), line + "\n"); }

  UniqueFd pipe_;
  pid_t pid_ = 0;
  bool is_watching_ = false;
};

pid_t start_command(const EventCommandOptions& options, const Event& event, int log) {
  const std::filesystem::path run_dir = std::filesystem::absolute(options.run_dir);
  nlohmann::ordered_json json = {
      {"event", event.name}, {"step", event.step}, {"run_dir", run_dir.string()}};
  json.update(event.details);
  const UniqueFd in =
      file_with_line(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  return SpawnSettings(in.get(), log)
      .spawn({"sh", "-c", options.command}, variables_of(event, run_dir));
}

/// "ended with exit code 3"; "" for success.
std::string failure_of(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
  const int code = WEXITSTATUS(status);
  return code == 0 ? "" : fmt::format("ended with exit code {}", code);
}

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
    constexpr size_t kMostWaiting = 32;
    const std::scoped_lock lock(mutex_);
    if (waiting_.size() >= kMostWaiting) {
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
    CommandGuard guard(log.get());
    const pid_t pid = start_command(options_, event, log.get());
    guard.watch(pid);
    const double started_s = monotonic_seconds();
    int status = 0;
    while (!has_ended(pid, status)) {
      if (is_told_to_end()) {
        end_now(pid, status);
        log::warn("callbacks.command for {} was ended: the run was told to end at once",
                  describe_event(event));
        return;
      }
      if (!is_late(started_s)) continue;
      end(pid, status);
      log::warn("callbacks.command for {} was ended after {} (callbacks.timeout {})",
                describe_event(event), format_duration(monotonic_seconds() - started_s),
                format_duration(options_.timeout_s));
      return;
    }
    if (const std::string failure = failure_of(status); !failure.empty())
      log::warn("callbacks.command for {} {}; see {}", describe_event(event), failure,
                (options_.run_dir / "logs" / "callbacks.log").string());
  }

  bool is_told_to_end() const { return options_.should_end && options_.should_end(); }

  bool is_late(double started_s) {
    const std::scoped_lock lock(mutex_);
    const double now = monotonic_seconds();
    return now - started_s >= options_.timeout_s || (is_closed_ && now >= ends_at_s_);
  }

  /// Waits a moment for the command.
  static bool has_ended(pid_t pid, int& status) {
    constexpr auto kMoment = std::chrono::milliseconds(10);
    if (::waitpid(pid, &status, WNOHANG) == pid) return true;
    std::this_thread::sleep_for(kMoment);
    return false;
  }

  static void end_now(pid_t pid, int& status) {
    ::kill(-pid, SIGKILL);
    ::waitpid(pid, &status, 0);
  }

  /// Ends the command and what it has started.
  static void end(pid_t pid, int& status) {
    ::kill(-pid, SIGTERM);
    const double until_s = monotonic_seconds() + kGraceS;
    bool ended = false;
    while (!ended && monotonic_seconds() < until_s) ended = has_ended(pid, status);
    ::kill(-pid, SIGKILL);
    if (!ended) ::waitpid(pid, &status, 0);
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
