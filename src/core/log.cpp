#include "sftrun/core/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>

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

std::shared_ptr<spdlog::logger> make_logger(const Options& options) {
  std::vector<spdlog::sink_ptr> sinks;
  auto console = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  console->set_level(to_spdlog(options.console));
  sinks.push_back(std::move(console));
  if (options.file) {
    auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file->string());
    file->set_level(spdlog::level::debug);
    sinks.push_back(std::move(file));
  }
  auto logger = std::make_shared<spdlog::logger>("sftrun", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::debug);
  logger->flush_on(spdlog::level::info);
  logger->set_pattern(options.rank
                          ? fmt::format("[%H:%M:%S.%e] [%^%l%$] [rank {}] %v", *options.rank)
                          : "[%H:%M:%S.%e] [%^%l%$] %v");
  return logger;
}

// The one piece of process-wide state: a log is the process's by nature.
struct Holder {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> logger = make_logger({});
};
Holder& holder() {
  static Holder instance;
  return instance;
}
std::shared_ptr<spdlog::logger> current() {
  const std::lock_guard lock(holder().mutex);
  return holder().logger;
}

}  // namespace

void configure(const Options& options) {
  auto logger = make_logger(options);
  const std::lock_guard lock(holder().mutex);
  holder().logger = std::move(logger);
}

void write(Level level, std::string_view message) {
  current()->log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

void flush() {
  current()->flush();
}

}  // namespace sftrun::log
