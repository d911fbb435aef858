#include "sftrun/launch/event_commands.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "guarded_command.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
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

/// A command that runs, and reads what happened.
class RunningCommand {
 public:
  RunningCommand(const EventCommandOptions& options, const Event& event, int log) {
    const std::filesystem::path run_dir = absolute_path(options.run_dir);
    nlohmann::ordered_json json = {
        {"event", event.name}, {"step", event.step}, {"run_dir", run_dir.string()}};
    json.update(event.details);
    const UniqueFd in =
        file_with_line(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    command_.emplace(options.guard, options.command,
                     command_environment({{"SFTRUN_EVENT", event.name},
                                          {"SFTRUN_STEP", std::to_string(event.step)},
                                          {"SFTRUN_RUN_DIR", run_dir.string()}}),
                     CommandStreams{.in = in.get(), .out = log, .error = log});
  }

  /// Waits a moment for it.
  bool has_ended() {
    constexpr auto kMoment = std::chrono::milliseconds(10);
    if (command_->has_ended()) return true;
    std::this_thread::sleep_for(kMoment);
    return false;
  }
  void end(GuardOrder order) { command_->end(order); }
  std::string failure() const { return command_->failure(); }

 private:
  std::optional<GuardedCommand> command_;
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
