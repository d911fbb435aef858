#include "rank_threads.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "sftrun/core/error.h"
#include "two_ranks.h"

namespace sftrun::engine {
namespace {

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
