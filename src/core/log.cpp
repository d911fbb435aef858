#include "sftrun/core/console_writer.h"
#include "sftrun/core/short_quotes.h"
#include "sftrun/core/terminal.h"
#include "sftrun/core/thread_log.h"
#include "sftrun/core/verbosity.h"
#include "sftrun/core/warnings.h"

#include <spdlog/details/os.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

namespace sftrun::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

using Logger = std::shared_ptr<spdlog::logger>;

/// The usual level follows the user's wish; others are what the program needs.
Level wished(Level console) {
  if (console != Level::kInfo) return console;
  switch (verbosity()) {
    case Verbosity::kQuiet:
      return Level::kWarn;
    case Verbosity::kNormal:
      return Level::kInfo;
    case Verbosity::kVerbose:
      return Level::kDebug;
  }
  return console;
}

/// Standard error, with coloured levels on a terminal. Nobody waits for a console that nobody reads.
class ConsoleSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  ConsoleSink()
      : has_colors_(!wants_no_color() && spdlog::details::os::in_terminal(stderr) &&
                    spdlog::details::os::is_color_terminal()) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    message.color_range_start = message.color_range_end = 0;  // the formatter sets them
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    std::string line(formatted.data(), formatted.size());
    if (has_colors_ && message.color_range_end > message.color_range_start) {
      line.insert(message.color_range_end, "\033[m");
      line.insert(message.color_range_start, color_of(message.level));
    }
    ConsoleWriter::of_process().write(STDERR_FILENO, line);
  }
  void flush_() override {}  // `log::flush` waits for the writer

  static const char* color_of(spdlog::level::level_enum level) {
    switch (level) {
      case spdlog::level::warn:
        return "\033[33m\033[1m";  // yellow, bold
      case spdlog::level::err:
        return "\033[31m\033[1m";  // red, bold
      case spdlog::level::info:
        return "\033[32m";  // green
      default:
        return "\033[36m";  // cyan
    }
  }

  const bool has_colors_;
};

/// @param file null: none
Logger make_logger(Level console_level, const spdlog::sink_ptr& file, const std::string& pattern) {
  auto console = std::make_shared<ConsoleSink>();
  console->set_level(to_spdlog(wished(console_level)));
  std::vector<spdlog::sink_ptr> sinks = {std::move(console)};
  if (file) sinks.push_back(file);
  auto logger = std::make_shared<spdlog::logger>("sftrun", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::debug);
  logger->flush_on(spdlog::level::info);
  logger->set_pattern(pattern);
  return logger;
}

struct Loggers {
  Logger of_run, of_rank;

  explicit Loggers(const Options& options) {
    spdlog::sink_ptr file;
    if (options.file) {
      file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file->string());
      file->set_level(spdlog::level::debug);
    }
    const std::string plain = "[%H:%M:%S.%e] [%^%l%$] %v";
    // The last pattern that is set is the file's, too: lines of a rank name it themselves.
    of_rank = make_logger(std::min(options.console, Level::kWarn), file, plain);
    of_run = make_logger(
        options.console, file,
        options.rank ? fmt::format("[%H:%M:%S.%e] [%^%l%$] [rank {}] %v", *options.rank) : plain);
  }
};

// The one piece of process-wide state: a log is the process's by nature.
struct Holder {
  std::mutex mutex;
  Loggers loggers{Options{}};
  std::vector<std::string> warnings;
  std::vector<std::thread::id> of_errors;  // threads with `ErrorsOfThread`
  std::atomic<bool> has_any{false};        // of them
};
Holder& holder() {
  static Holder instance;
  return instance;
}
Loggers current() {
  const std::lock_guard lock(holder().mutex);
  return holder().loggers;
}

void remember(std::string_view warning) {
  constexpr size_t kMax = 1000;  // more of them are of single steps
  const std::lock_guard lock(holder().mutex);
  if (holder().warnings.size() < kMax) holder().warnings.emplace_back(warning);
}

/// No variable of the thread: the first use of one in a library that is opened later takes memory, and ends the process where there is none.
bool logs_only_errors() {
  Holder& shared = holder();
  if (!shared.has_any) return false;
  const std::lock_guard lock(shared.mutex);
  return std::ranges::find(shared.of_errors, std::this_thread::get_id()) != shared.of_errors.end();
}

}  // namespace

ErrorsOfThread::ErrorsOfThread() {
  const std::lock_guard lock(holder().mutex);
  holder().of_errors.push_back(std::this_thread::get_id());
  holder().has_any = true;
}
ErrorsOfThread::~ErrorsOfThread() {
  auto& threads = holder().of_errors;
  const std::lock_guard lock(holder().mutex);
  threads.erase(std::ranges::find(threads, std::this_thread::get_id()));
  holder().has_any = !threads.empty();
}

void configure(const Options& options) {
  Loggers loggers(options);
  const std::lock_guard lock(holder().mutex);
  holder().loggers = std::move(loggers);
}

void write(Level level, std::string_view message) {
  if (level < Level::kError && logs_only_errors()) level = Level::kDebug;
  const std::string shown = with_short_quotes(with_visible_controls(message));
  if (level == Level::kWarn) remember(shown);
  current().of_run->log(to_spdlog(level), spdlog::string_view_t(shown.data(), shown.size()));
}

void write_of_rank(int rank, std::string_view message) {
  current().of_rank->warn("[rank {}] {}", rank, with_short_quotes(with_visible_controls(message)));
}

std::vector<std::string> written_warnings() {
  const std::lock_guard lock(holder().mutex);
  return holder().warnings;
}

void flush() {
  current().of_run->flush();
  ConsoleWriter::of_process().flush();
}

}  // namespace sftrun::log
