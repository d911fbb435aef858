#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

/// Logging in the house format: `[12:03:04.118] [info] [rank 0] message`. spdlog stays behind one
/// translation unit (its fmt and LibTorch's are different versions).
namespace sftrun::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };

struct Options {
  std::optional<int> rank;       ///< shown in each line when set
  Level console = Level::kInfo;  ///< least level that reaches stderr
  std::optional<std::filesystem::path>
      file;  ///< every line from debug up also goes here (appended)
};

/// Sets up this process's (or shared library's) logger; may be called again. Thread-safe.
void configure(const Options& options);
void write(Level level, std::string_view message);
void flush();

template <typename... Args>
void debug(fmt::format_string<Args...> f, Args&&... args) {
  write(Level::kDebug, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> f, Args&&... args) {
  write(Level::kInfo, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> f, Args&&... args) {
  write(Level::kWarn, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> f, Args&&... args) {
  write(Level::kError, fmt::format(f, std::forward<Args>(args)...));
}

}  // namespace sftrun::log
