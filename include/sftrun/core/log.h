#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

/// Logging in the format `[12:03:04.118] [info] [rank 0] message`. Only one translation unit
/// includes spdlog, because its fmt and LibTorch's are different versions.
namespace sftrun::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };

struct Options {
  std::optional<int> rank;       ///< printed in each line if set
  Level console = Level::kInfo;  ///< lowest level that is printed to stderr
  std::optional<std::filesystem::path>
      file;  ///< also receives every line from level debug (appended)
};

/// Sets up the logger of this process (or shared library); may be called again. Thread-safe.
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
