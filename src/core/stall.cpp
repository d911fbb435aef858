#include "sftrun/core/stall.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"

namespace sftrun {
namespace {

/// "1580" of "(step 1580)"; ranks before the first step have none.
std::string in_step(int64_t step) {
  return step > 0 ? fmt::format(" (step {})", step) : "";
}

bool is_waiting(const RankView& rank) {
  return !rank.is_stopped && !rank.is_silent && !rank.state.waits_in.empty();
}

const char* has(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? "has" : "have";
}

/// Ranks that hinder the others in the same way.
using Causes = std::map<std::tuple<std::string, int64_t>, std::vector<const RankView*>>;

std::string cause_of(const RankView& rank) {
  if (rank.is_stopped) return "stopped";
  if (rank.is_silent) return "silent";
  return std::string(describe_work(rank.state.work));
}

std::vector<int> numbers_of(const std::vector<const RankView*>& ranks) {
  std::vector<int> numbers;
  for (const RankView* rank : ranks) numbers.push_back(rank->rank);
  return numbers;
}

std::string describe_cause(const std::vector<const RankView*>& ranks) {
  const std::vector<int> numbers = numbers_of(ranks);
  const RankView& first = *ranks.front();
  const std::string step = in_step(first.state.step);
  const char* is = numbers.size() == 1 ? "is" : "are";
  if (first.is_stopped) {
    const std::string where = first.state.waits_in.empty()
                                  ? std::string(describe_work(first.state.work))
                                  : "in " + first.state.waits_in;
    return fmt::format("{} {} stopped by a signal (SIGSTOP) {}{}", name_ranks(numbers), is, where,
                       step);
  }
  if (first.is_silent) {
    return fmt::format("{} {} no heartbeat (stopped, or the machine is gone)", name_ranks(numbers),
                       numbers.size() == 1 ? "sends" : "send");
  }
  double quiet_s = first.state.quiet_s;
  for (const RankView* rank : ranks) quiet_s = std::min(quiet_s, rank->state.quiet_s);
  const std::string_view work = describe_work(first.state.work);
  if (quiet_s < 1) return fmt::format("{} {} {}{}", name_ranks(numbers), is, work, step);
  return fmt::format("{} {} been {} for {}{}", name_ranks(numbers), has(numbers), work,
                     format_duration(quiet_s), step);
}

/// "ranks 0-2 wait in all-reduce, rank 4 waits in barrier"
std::string describe_waits(const std::vector<const RankView*>& ranks) {
  std::map<std::string, std::vector<int>> by_wait;
  for (const RankView* rank : ranks) by_wait[rank->state.waits_in].push_back(rank->rank);
  std::vector<std::string> texts;
  for (const auto& [wait, numbers] : by_wait)
    texts.push_back(fmt::format("{} {} in {}", name_ranks(numbers),
                                numbers.size() == 1 ? "waits" : "wait", wait));
  return join(texts, ", ");
}

std::string describe_causes(const std::vector<const RankView*>& guilty) {
  Causes causes;
  for (const RankView* rank : guilty) causes[{cause_of(*rank), rank->state.step}].push_back(rank);
  std::vector<std::string> texts;
  for (const auto& [cause, ranks] : causes) texts.push_back(describe_cause(ranks));
  return join(texts, "; ");
}

}  // namespace

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr size_t kShownParts = 8;
  std::vector<std::string> parts;
  size_t shown = 0;
  for (size_t i = 0; i < ranks.size() && parts.size() < kShownParts;) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;  // two neighbours are no range
    parts.push_back(end == i + 1 ? std::to_string(ranks[i])
                                 : fmt::format("{}-{}", ranks[i], ranks[end - 1]));
    shown += end - i;
    i = end;
  }
  if (shown < ranks.size()) parts.push_back(fmt::format("{} more", ranks.size() - shown));
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " and " : ", ";
    text += parts[i];
  }
  return text;
}

std::optional<Stall> find_stall(const std::vector<RankView>& ranks, double stall_s) {
  std::vector<const RankView*> guilty, waiting;
  Stall stall;
  bool all_wait_long = true;
  for (const RankView& rank : ranks) {
    (is_waiting(rank) ? waiting : guilty).push_back(&rank);
    if (is_waiting(rank) || rank.is_stopped)
      stall.seconds = std::max(stall.seconds, rank.state.quiet_s);
    all_wait_long = all_wait_long && is_waiting(rank) && rank.state.quiet_s >= stall_s;
  }
  if (stall.seconds < stall_s) return std::nullopt;
  if (guilty.empty() && !all_wait_long) return std::nullopt;  // some have just begun to wait
  stall.guilty = numbers_of(guilty);
  if (guilty.empty()) {
    stall.text = fmt::format(
        "every rank has waited for the others for {}{}: {}; a connection between them may be "
        "broken",
        format_duration(stall.seconds), in_step(ranks.front().state.step), describe_waits(waiting));
  } else {
    stall.text = describe_causes(guilty);
    if (!waiting.empty()) stall.text += "; " + describe_waits(waiting);
  }
  return stall;
}

double stall_report_s(double configured_s, double timeout_s) {
  return std::min(configured_s, timeout_s / 3);
}

}  // namespace sftrun
