#include "rank_threads.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "sftrun/core/error.h"
#include "sftrun/launch/launch_plan.h"

namespace sftrun::engine {
namespace {

/// Two ranks of this process, connected over Gloo.
struct TwoRanks {
  TwoRanks() : second(first, env(1), 0) { first.take_place(env(0), 0); }

  launch::WorkerEnv env(int rank) const {
    return {.rank = rank,
            .world_size = 2,
            .local_rank = rank,
            .local_world_size = 2,
            .master_port = port};
  }
  int run(const std::function<int(Rank&)>& body) {
    return run_rank_threads({&first, &second}, FailureContext{}, [&](Rank& rank) {
      rank.connect({}, at::kCPU);
      return body(rank);
    });
  }

  int port = launch::pick_free_port();
  Rank first, second;
};

TEST(RankThreads, MeetAndReturnTheCodeOfTheFirst) {
  TwoRanks ranks;
  std::array<double, 2> sums{};
  const int code = ranks.run([&](Rank& rank) {
    const auto all = rank.comm().all_gather({rank.env().rank + 1.0});
    sums[static_cast<size_t>(rank.env().rank)] = all[0][0] + all[1][0];
    return rank.is_main() ? 7 : 0;
  });
  EXPECT_EQ(code, 7);
  EXPECT_EQ(sums, (std::array<double, 2>{3, 3}));
}

// The other rank waits in a collective for the one that failed.
TEST(RankThreads, AFailureEndsTheOthers) {
  for (const int failing : {0, 1}) {
    TwoRanks ranks;
    const auto begin = std::chrono::steady_clock::now();
    const int code = ranks.run([&](Rank& rank) -> int {
      if (rank.env().rank == failing) throw DataError("no such line", "data.jsonl:3");
      rank.comm().all_gather({1.0});
      return 0;
    });
    EXPECT_EQ(code, static_cast<int>(DataError("", "").code())) << failing;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8)) << failing;
  }
}

}  // namespace
}  // namespace sftrun::engine
