#include "live_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sftrun/core/plural.h"
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

std::optional<std::string> memory_of(const Status& status) {
  const auto bytes = status.memory_used_bytes ? status.memory_used_bytes : status.memory_bytes;
  return bytes ? std::optional(format_bytes(*bytes)) : std::nullopt;
}

/// Of its GPU, or without one of the processors.
std::optional<std::string> utilization_of(const Status& status) {
  if (status.gpu_percent) return fmt::format("GPU {:3.0f}%", *status.gpu_percent);
  if (status.cpu_percent) return fmt::format("CPU {:3.0f}%", *status.cpu_percent);
  return std::nullopt;
}

/// @param is_alone whether this is the only worker, whose memory and utilisation are in the line
std::string progress_line(const Status& status, size_t columns, bool is_alone) {
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
  constexpr double kSoon = 1;  // s
  if (status.eta_s && *status.eta_s >= kSoon)
    parts.push_back(format_duration(*status.eta_s) + " left");
  if (status.tokens_per_second) {
    parts.push_back(format_count(static_cast<uint64_t>(std::max(0.0, *status.tokens_per_second))) +
                    " tok/s");
  }
  if (is_alone) {
    for (const auto& part : {memory_of(status), utilization_of(status)})
      if (part) parts.push_back(*part);
  }

  std::string tail;
  for (const std::string& part : parts) {
    if (line.size() + 1 + steps.size() + tail.size() + 2 + part.size() > columns) break;
    tail += "  " + part;
  }
  const size_t used = line.size() + 1 + steps.size() + tail.size();
  const bool has_bar = status.total_steps > 0 && used + kBarWidth + 3 <= columns;
  const double fraction = status.total_steps > 0 ? static_cast<double>(status.step) /
                                                       static_cast<double>(status.total_steps)
                                                 : 0;
  line += " ";
  if (has_bar) line += bar(fraction, kBarWidth);
  line += steps + tail;
  return line.substr(0, columns);
}

/// "rank 0  12.30 GiB  GPU  98%"; empty if nothing is known of it yet.
std::string cell_of(const RankStatus& rank, int digits) {
  std::string text;
  for (const auto& part : {memory_of(rank.status), utilization_of(rank.status)})
    if (part) text += "  " + *part;
  return text.empty() ? "" : fmt::format("rank {:{}}{}", rank.rank, digits, text);
}

/// The cells in columns of one width, row by row.
/// @param max_rows for more, the last row says how many ranks are left out
std::vector<std::string> table_of(const std::vector<std::string>& cells, size_t columns,
                                  size_t max_rows) {
  constexpr size_t kGap = 3;
  size_t width = 0;
  for (const std::string& cell : cells) width = std::max(width, cell.size());
  const size_t per_row = std::max<size_t>(1, (columns + kGap) / (width + kGap));
  const size_t all_rows = (cells.size() + per_row - 1) / per_row;
  const size_t shown_rows = all_rows > max_rows ? max_rows - 1 : all_rows;
  std::vector<std::string> lines;
  for (size_t row = 0; row < shown_rows; ++row) {
    std::string line;
    for (size_t i = row * per_row; i < std::min(cells.size(), (row + 1) * per_row); ++i) {
      if (!line.empty()) line.append(kGap, ' ');
      line += fmt::format("{:<{}}", cells[i], width);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(line.substr(0, columns));
  }
  if (shown_rows < all_rows) {
    const size_t left_out = cells.size() - shown_rows * per_row;
    lines.push_back(fmt::format("and {}", counted(left_out, "more rank")).substr(0, columns));
  }
  return lines;
}

}  // namespace

std::vector<std::string> live_view(const std::vector<RankStatus>& ranks, TerminalSize size) {
  const auto columns = static_cast<size_t>(std::max(size.columns, 1));
  std::vector<std::string> lines = {
      progress_line(ranks.front().status, columns, /*is_alone=*/ranks.size() == 1)};
  // Half of the terminal at most, so that log lines can be read.
  constexpr int kMaxRows = 8;
  const int rows_for_ranks = std::min(kMaxRows, size.rows / 2 - 1);
  if (ranks.size() == 1 || rows_for_ranks < 1) return lines;
  const auto digits = static_cast<int>(std::to_string(ranks.back().rank).size());
  std::vector<std::string> cells;
  for (const RankStatus& rank : ranks)
    if (std::string cell = cell_of(rank, digits); !cell.empty()) cells.push_back(std::move(cell));
  for (std::string& line : table_of(cells, columns, static_cast<size_t>(rows_for_ranks)))
    lines.push_back(std::move(line));
  return lines;
}

}  // namespace sftrun::launch
