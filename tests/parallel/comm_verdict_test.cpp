#include "sftrun/parallel/comm_verdict.h"

#include <gtest/gtest.h>

#include <utility>

namespace sftrun::parallel {
namespace {

using Numbers = std::vector<int>;

CallState calls(int64_t called, int64_t done, bool is_reached = true) {
  return {.called = called,
          .done = done,
          .last = "all_gather",
          .open = called > done ? "all_reduce" : "",
          .is_reached = called > done && is_reached,
          .is_waited = called > done,
          .is_inside = false,
          .open_s = 0};
}

GroupCalls world(const CallState& state) {
  return {.key = "world", .name = "", .ranks = {0, 1, 2, 3}, .calls = state};
}

RankCalls rank_with(int rank, std::vector<GroupCalls> groups) {
  RankCalls calls;
  calls.rank = rank;
  calls.groups = std::move(groups);
  return calls;
}

/// Four ranks of one group that wait in its fifth call; rank 0 has seen it first.
std::vector<RankCalls> four_in_their_fifth_call() {
  std::vector<RankCalls> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(rank_with(rank, {world(calls(5, 4))}));
  ranks[0].order = 1;
  ranks[0].group = "world";
  ranks[0].what = "all_reduce";
  return ranks;
}

TEST(CommVerdict, NamesTheRankThatHasNotCalled) {
  auto ranks = four_in_their_fifth_call();
  ranks[2].groups[0].calls = calls(4, 4);
  const CommVerdict verdict = find_verdict(ranks);
  EXPECT_EQ(verdict.guilty, Numbers{2});
  EXPECT_EQ(verdict.what, "all_reduce");
  EXPECT_EQ(verdict.call, 5);
  EXPECT_EQ(verdict.text, "rank 2 has not called it (its last one: all_gather 4)");
}

// Its host waits for the GPU before the call.
TEST(CommVerdict, NamesTheGpuThatKeepsItsHostFromTheCall) {
  auto ranks = four_in_their_fifth_call();
  ranks[2].groups[0].calls = calls(4, 3);
  EXPECT_EQ(find_verdict(ranks).guilty, Numbers{2});
  EXPECT_EQ(find_verdict(ranks).text, "rank 2 has not called it: its GPU hangs after all_gather 4");
}

TEST(CommVerdict, NamesTheGpuThatHasNotComeToTheCall) {
  auto ranks = four_in_their_fifth_call();
  for (const int rank : {1, 3}) ranks[static_cast<size_t>(rank)].groups[0].calls.is_reached = false;
  const CommVerdict verdict = find_verdict(ranks);
  EXPECT_EQ(verdict.guilty, (Numbers{1, 3}));
  EXPECT_EQ(verdict.text,
            "the GPUs of ranks 1 and 3 have not come to it: earlier work hangs there");
}

TEST(CommVerdict, NamesTheGpuThatHangsAfterTheCall) {
  auto ranks = four_in_their_fifth_call();
  for (const int rank : {0, 1, 2}) ranks[static_cast<size_t>(rank)].groups[0].calls = calls(5, 5);
  EXPECT_EQ(find_verdict(ranks).guilty, Numbers{3});
  EXPECT_EQ(find_verdict(ranks).text, "the GPU of rank 3 hangs in it or after it");
}

// It has called a receive ahead of time.
TEST(CommVerdict, NamesTheHostThatDoesSomethingElseSinceTheCall) {
  auto ranks = four_in_their_fifth_call();
  for (const int rank : {0, 1, 2}) ranks[static_cast<size_t>(rank)].groups[0].calls = calls(5, 5);
  ranks[3].groups[0].calls.is_waited = false;
  EXPECT_EQ(find_verdict(ranks).guilty, Numbers{3});
  EXPECT_EQ(find_verdict(ranks).text, "rank 3 has called it and does something else since");
}

TEST(CommVerdict, NamesTheHostThatIsStillInTheCall) {
  auto ranks = four_in_their_fifth_call();
  ranks[1].groups[0].calls.is_inside = true;
  EXPECT_EQ(find_verdict(ranks).guilty, Numbers{1});
  EXPECT_EQ(find_verdict(ranks).text, "rank 1 has not come out of the call");
}

TEST(CommVerdict, NamesRanksThatGiveNoAnswer) {
  auto ranks = four_in_their_fifth_call();
  ranks[3] = {.rank = 3, .has_answered = false};
  EXPECT_EQ(find_verdict(ranks).guilty, Numbers{3});
  EXPECT_EQ(find_verdict(ranks).text, "rank 3 gives no answer (stopped, or the machine is gone)");
}

TEST(CommVerdict, NamesNobodyWhereAllWait) {
  const CommVerdict verdict = find_verdict(four_in_their_fifth_call());
  EXPECT_TRUE(verdict.guilty.empty());
  EXPECT_EQ(verdict.text, "ranks 0-3 have called it, and none of their GPUs is done with it");
}

// The others see in their own communicators only that a rank is lost.
TEST(CommVerdict, AnErrorOfNcclComesFirst) {
  auto ranks = four_in_their_fifth_call();
  ranks[0].error = "remote process exited";
  ranks[0].is_remote = true;
  ranks[2].order = 2;
  ranks[2].group = "world";
  ranks[2].what = "all_reduce";
  ranks[2].error = "unhandled system error";
  ranks[3].groups[0].calls = calls(4, 4);
  const CommVerdict verdict = find_verdict(ranks);
  EXPECT_EQ(verdict.guilty, Numbers{2});
  EXPECT_EQ(verdict.text, "NCCL failed on rank 2: unhandled system error");
}

// Ranks 0 and 1 wait for rank 1 in tp, which waits for rank 3 in dp, which has not called.
TEST(CommVerdict, FollowsWaitsFromGroupToGroup) {
  const auto group = [](const char* key, Numbers of, const CallState& state) {
    return GroupCalls{.key = key, .name = key, .ranks = std::move(of), .calls = state};
  };
  std::vector<RankCalls> ranks = {
      rank_with(0, {group("tp", {0, 1}, calls(9, 8)), group("dp even", {0, 2}, calls(3, 3))}),
      rank_with(1, {group("tp", {0, 1}, calls(9, 8, false)), group("dp", {1, 3}, calls(4, 3))}),
      rank_with(2, {group("tp high", {2, 3}, calls(8, 8)), group("dp even", {0, 2}, calls(3, 3))}),
      rank_with(3, {group("tp high", {2, 3}, calls(8, 8)), group("dp", {1, 3}, calls(3, 3))})};
  ranks[0].order = 1;
  ranks[0].group = "tp";
  ranks[0].what = "all_gather";
  const CommVerdict verdict = find_verdict(ranks);
  EXPECT_EQ(verdict.guilty, Numbers{3});
  EXPECT_EQ(verdict.group, "dp");
  EXPECT_EQ(verdict.what, "all_reduce");
  EXPECT_EQ(verdict.call, 4);
}

}  // namespace
}  // namespace sftrun::parallel
