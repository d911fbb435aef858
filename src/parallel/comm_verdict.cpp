#include "sftrun/parallel/comm_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "sftrun/core/stall.h"

namespace sftrun::parallel {
namespace {

const GroupCalls* group_of(const RankCalls& rank, const std::string& key) {
  const auto found = std::find_if(rank.groups.begin(), rank.groups.end(),
                                  [&](const GroupCalls& group) { return group.key == key; });
  return found == rank.groups.end() ? nullptr : &*found;
}

/// The first rank that failed; of NCCL's errors, one that is not about another rank.
const RankCalls* first_failed(const std::vector<RankCalls>& ranks, bool with_own_error) {
  const RankCalls* first = nullptr;
  for (const RankCalls& rank : ranks) {
    if (rank.order == 0 || (with_own_error && (rank.error.empty() || rank.is_remote))) continue;
    if (first == nullptr || rank.order < first->order) first = &rank;
  }
  return first;
}

/// One group, as all its ranks see it.
class Waiting {
 public:
  Waiting(const std::vector<RankCalls>& ranks, const GroupCalls& group)
      : ranks_(ranks), group_(group) {
    for (const int rank : group.ranks)
      if (const GroupCalls* of_rank = group_of(ranks[static_cast<size_t>(rank)], group.key);
          of_rank != nullptr && !of_rank->calls.open.empty())
        call_ = std::max(call_, of_rank->calls.done + 1);
  }
  int64_t call() const { return call_; }
  std::vector<int> silent() const {
    return ranks_where([](const RankCalls& rank, const CallState&) { return !rank.has_answered; });
  }
  std::vector<int> not_called() const {
    return ranks_where([this](const RankCalls& rank, const CallState& calls) {
      return rank.has_answered && calls.called < call_;
    });
  }
  std::vector<int> inside() const {
    std::vector<int> found = ranks_where([this](const RankCalls&, const CallState& calls) {
      return calls.is_inside && calls.called == call_;
    });
    if (found.size() == group_.ranks.size()) found.clear();
    return found;
  }
  std::vector<int> not_reached() const {
    const auto there = [this](const CallState& calls) {
      return calls.done >= call_ || (calls.done + 1 == call_ && calls.is_reached);
    };
    std::vector<int> missing = ranks_where([&](const RankCalls& rank, const CallState& calls) {
      return rank.has_answered && !there(calls);
    });
    if (missing.size() == group_.ranks.size()) missing.clear();  // none waits for another
    return missing;
  }
  /// Where the other ranks are done with the call. A rank that receives can be alone in that: what is
  /// small is sent before it is received.
  std::vector<int> not_done() const {
    std::vector<int> missing = ranks_where(
        [this](const RankCalls&, const CallState& calls) { return calls.done < call_; });
    if (missing.size() == group_.ranks.size()) missing.clear();
    return missing;
  }

 private:
  template <typename Holds>
  std::vector<int> ranks_where(Holds&& holds) const {
    std::vector<int> found;
    for (const int rank : group_.ranks) {
      const RankCalls& of_rank = ranks_[static_cast<size_t>(rank)];
      const GroupCalls* group = group_of(of_rank, group_.key);
      if (holds(of_rank, group == nullptr ? CallState{} : group->calls)) found.push_back(rank);
    }
    return found;
  }

  const std::vector<RankCalls>& ranks_;
  const GroupCalls& group_;
  int64_t call_ = 1;
};

const char* has(const std::vector<int>& ranks) {
  return ranks.size() == 1 ? "has" : "have";
}

std::string last_call(const RankCalls& rank, const std::string& key) {
  const GroupCalls* group = group_of(rank, key);
  if (group == nullptr || group->calls.last.empty()) return "";
  const CallState& calls = group->calls;
  if (calls.called > calls.done && !calls.is_inside)  // the other ranks are done with that one
    return fmt::format(": its GPU hangs after {} {}", calls.last, calls.called);
  return fmt::format(" (its last one: {} {})", group->calls.last, group->calls.called);
}

/// The GPU hangs in the call, as far as that can be seen, or in what follows; or the host, which has not
/// asked for the result yet, is late.
std::string text_of_not_done(const std::vector<RankCalls>& ranks, const std::string& key,
                             const std::vector<int>& not_done) {
  const bool is_waited = std::any_of(not_done.begin(), not_done.end(), [&](int rank) {
    const GroupCalls* group = group_of(ranks[static_cast<size_t>(rank)], key);
    return group != nullptr && group->calls.is_waited;
  });
  if (is_waited) return fmt::format("the GPU of {} hangs in it or after it", name_ranks(not_done));
  return fmt::format("{} {} called it and {} something else since", name_ranks(not_done),
                     has(not_done), not_done.size() == 1 ? "does" : "do");
}

CommVerdict judge(const std::vector<RankCalls>& ranks, const GroupCalls& group,
                  const std::string& what, std::set<std::string>& asked) {
  asked.insert(group.key);
  const Waiting waiting(ranks, group);
  CommVerdict verdict{
      .what = what, .group = group.name, .call = waiting.call(), .guilty = {}, .text = {}};
  if (const std::vector<int> silent = waiting.silent(); !silent.empty()) {
    verdict.guilty = silent;
    verdict.text = fmt::format("{} {} no answer (stopped, or the machine is gone)",
                               name_ranks(silent), silent.size() == 1 ? "gives" : "give");
    return verdict;
  }
  const std::vector<int> not_called = waiting.not_called();
  const std::vector<int> missing = not_called.empty() ? waiting.not_reached() : not_called;
  for (const int rank : missing) {  // which may wait for others itself
    for (const GroupCalls& other : ranks[static_cast<size_t>(rank)].groups)
      if (!other.calls.open.empty() && other.calls.is_reached && !asked.contains(other.key))
        return judge(ranks, other, other.calls.open, asked);
  }
  verdict.guilty = missing;
  if (!not_called.empty()) {
    verdict.text = fmt::format("{} {} not called it", name_ranks(missing), has(missing));
    if (missing.size() == 1)
      verdict.text += last_call(ranks[static_cast<size_t>(missing[0])], group.key);
  } else if (!missing.empty()) {
    verdict.text =
        fmt::format("the {} of {} {} not come to it: earlier work hangs there",
                    missing.size() == 1 ? "GPU" : "GPUs", name_ranks(missing), has(missing));
  } else if (const std::vector<int> not_done = waiting.not_done(); !not_done.empty()) {
    verdict.guilty = not_done;
    verdict.text = text_of_not_done(ranks, group.key, not_done);
  } else if (const std::vector<int> inside = waiting.inside(); !inside.empty()) {
    verdict.guilty = inside;
    verdict.text = fmt::format("{} {} not come out of the call", name_ranks(inside), has(inside));
  } else {
    verdict.text = fmt::format("{} have called it, and none of their GPUs is done with it",
                               name_ranks(group.ranks));
  }
  return verdict;
}

}  // namespace

CommVerdict find_verdict(const std::vector<RankCalls>& ranks) {
  if (const RankCalls* failed = first_failed(ranks, /*with_own_error=*/true)) {
    const GroupCalls* group = group_of(*failed, failed->group);
    return {.what = failed->what,
            .group = group == nullptr ? "" : group->name,
            .call = group == nullptr ? 0 : group->calls.done + 1,
            .guilty = {failed->rank},
            .text = fmt::format("NCCL failed on rank {}: {}", failed->rank, failed->error)};
  }
  const RankCalls* first = first_failed(ranks, /*with_own_error=*/false);
  const GroupCalls* group = first == nullptr ? nullptr : group_of(*first, first->group);
  if (group == nullptr) return {.what = "a collective", .text = "another rank is lost"};
  std::set<std::string> asked;
  CommVerdict verdict = judge(ranks, *group, first->what, asked);
  if (verdict.guilty.empty() && !first->error.empty()) verdict.text = first->error;
  return verdict;
}

}  // namespace sftrun::parallel
