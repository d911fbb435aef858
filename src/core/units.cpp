#include "sftrun/core/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace sftrun {

std::string format_bytes(uint64_t num_bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(num_bytes);
  size_t unit = 0;
  constexpr double kRoundedUp = 1023.995;  // shown as 1024.00
  while (value >= (unit == 0 ? 1024 : kRoundedUp) && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", num_bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string format_duration(double seconds) {
  constexpr double kTooLong = 1e15;  // beyond what the rounded number holds
  if (!(seconds >= 0) || seconds > kTooLong) return "?";
  if (const auto rounded_ms = std::llround(seconds * 1e3); rounded_ms < 1000)
    return fmt::format("{} ms", rounded_ms);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole % 3600 / 60);
}

std::string format_count(uint64_t count) {
  const double value = static_cast<double>(count);
  if (count < 10'000) return fmt::format("{}", count);
  if (value < 999.95e3) return fmt::format("{:.1f}k", value / 1e3);  // not 1000.0k
  if (value < 999.95e6) return fmt::format("{:.1f}M", value / 1e6);
  if (value < 999.995e9) return fmt::format("{:.2f}B", value / 1e9);
  return fmt::format("{:.2f}T", value / 1e12);
}

namespace {

/// Ten years. Clocks count nanoseconds, of which they have 292 years.
constexpr double kMaxDurationS = 3650.0 * 86400;

}  // namespace

std::optional<double> parse_duration_s(std::string_view text) {
  if (text.empty()) return std::nullopt;
  double total = 0;
  while (!text.empty()) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || !(value >= 0) || !std::isfinite(value)) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    double unit_s = 1;
    if (!text.empty()) {
      switch (text.front()) {
        case 's':
          unit_s = 1;
          break;
        case 'm':
          unit_s = 60;
          break;
        case 'h':
          unit_s = 3600;
          break;
        case 'd':
          unit_s = 86400;
          break;
        default:
          return std::nullopt;
      }
      text.remove_prefix(1);
    }
    total += value * unit_s;
  }
  if (total > kMaxDurationS) return std::nullopt;
  return total;
}

}  // namespace sftrun
