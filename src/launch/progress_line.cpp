#include "progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "sftrun/core/units.h"

namespace sftrun::launch {
namespace {

std::string bar(double fraction, int width) {
  const int filled = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * width);
  std::string text(static_cast<size_t>(filled), '=');
  if (filled < width) text += '>';
  text.resize(static_cast<size_t>(width), ' ');
  return "[" + text + "] ";
}

}  // namespace

std::string progress_line(const Status& status, int columns) {
  constexpr int kBarWidth = 20;
  std::string line(phase_name(status.phase));
  std::string steps;
  if (status.total_steps > 0) {
    steps = fmt::format("{}/{}", status.step, status.total_steps);
  } else if (status.step > 0) {
    steps = fmt::format("{}", status.step);
  }
  std::vector<std::string> parts;  // most important first
  if (status.loss) parts.push_back(fmt::format("loss {:.4f}", *status.loss));
  if (status.eta_s) parts.push_back(format_duration(*status.eta_s) + " left");
  if (status.tokens_per_second) {
    parts.push_back(format_count(static_cast<uint64_t>(std::max(0.0, *status.tokens_per_second))) +
                    " tok/s");
  }
  if (status.memory_bytes) parts.push_back(format_bytes(*status.memory_bytes));

  const auto limit = static_cast<size_t>(std::max(columns, 1));
  std::string tail;
  for (const std::string& part : parts) {
    if (line.size() + 1 + steps.size() + tail.size() + 2 + part.size() > limit) break;
    tail += "  " + part;
  }
  const size_t used = line.size() + 1 + steps.size() + tail.size();
  const bool has_bar = status.total_steps > 0 && used + kBarWidth + 3 <= limit;
  const double fraction = status.total_steps > 0 ? static_cast<double>(status.step) /
                                                       static_cast<double>(status.total_steps)
                                                 : 0;
  line += " ";
  if (has_bar) line += bar(fraction, kBarWidth);
  line += steps + tail;
  return line.substr(0, limit);
}

}  // namespace sftrun::launch
