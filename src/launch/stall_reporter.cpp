#include "stall_reporter.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"

namespace sftrun::launch {
namespace {

constexpr double kMaxPeriodS = 1;
constexpr double kRecentS = 15;  // from the last sight of a stall until its ranks have ended

std::string indented(const std::string& text) {
  std::string all;
  for (const std::string& line : split(text, '\n')) all += "\n    " + line;
  return all;
}

}  // namespace

StallReporter::StallReporter(double stall_s, bool sees_all_ranks)
    : stall_s_(stall_s),
      period_s_(std::min(kMaxPeriodS, stall_s / 4)),
      sees_all_ranks_(sees_all_ranks),
      reports_(stall_s) {}

std::optional<Stall> StallReporter::find(
    const std::vector<std::unique_ptr<WorkerProcess>>& workers) const {
  std::vector<RankView> ranks;
  for (const auto& worker : workers) {
    if (!worker->is_running()) return std::nullopt;  // the run ends
    RankView rank{.rank = worker->rank(), .state = worker->activity().read()};
    // Most of the time nobody waits for long, and no file of /proc is read.
    if (rank.state.quiet_s >= stall_s_ / 2) rank.is_stopped = worker->is_stopped();
    if (sees_all_ranks_ || rank.is_stopped) ranks.push_back(std::move(rank));
  }
  return ranks.empty() ? std::nullopt : find_stall(ranks, stall_s_);
}

std::optional<std::string> StallReporter::check(
    const std::vector<std::unique_ptr<WorkerProcess>>& workers, double now) {
  if (now < checked_ + period_s_) return std::nullopt;
  checked_ = now;
  const std::optional<Stall> stall = find(workers);
  if (!stall) {
    sightings_ = 0;
    reports_.reset();
    return std::nullopt;
  }
  if (++sightings_ < 2) return std::nullopt;
  last_ = stall->text;
  seen_ = now;
  if (!reports_.is_due(stall->seconds)) return std::nullopt;
  return report(*stall, workers);
}

std::string StallReporter::report(
    const Stall& stall, const std::vector<std::unique_ptr<WorkerProcess>>& workers) const {
  std::string text =
      fmt::format("warning: no progress for {}: {}", format_duration(stall.seconds), stall.text);
  for (const auto& worker : workers) {
    const int rank = worker->rank();
    if (std::find(stall.guilty.begin(), stall.guilty.end(), rank) == stall.guilty.end()) continue;
    if (worker->is_stopped()) {
      text += fmt::format("\n  kill -CONT {} continues rank {}", worker->pid(), rank);
      worker->note(fmt::format("no progress: {}", stall.text));
      continue;
    }
    const std::string stack = worker->stack();
    const std::string of_rank =
        stack.empty() ? fmt::format("\n  rank {} (pid {}) gives no stack", rank, worker->pid())
                      : fmt::format("\n  stack of rank {} (pid {}), innermost function first:{}",
                                    rank, worker->pid(), indented(stack));
    text += of_rank;
    worker->note(fmt::format("no progress: {}{}", stall.text, of_rank));
  }
  return text;
}

std::string StallReporter::recent(double now) const {
  return now - seen_ <= kRecentS ? last_ : "";
}

}  // namespace sftrun::launch
