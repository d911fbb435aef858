#include "spinning.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <chrono>
#include <filesystem>
#include <iterator>

namespace sftrun::engine {
namespace {

int64_t num_threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(Spinning, IsContendedWhenThreadsAreReadyAndDoNotRun) {
  Contention contention;
  EXPECT_FALSE(contention.add(0.05));
  EXPECT_FALSE(contention.add(0.15)) << "waking threads count, too";
  EXPECT_TRUE(contention.add(0.5));
  EXPECT_TRUE(contention.add(0.15));
}

TEST(Spinning, GoesOnSomeTimeAfterTheOthersEnded) {
  Contention contention;
  contention.add(1.5);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(contention.add(0.01));
  EXPECT_TRUE(contention.add(0.15));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(contention.add(0.01));
  EXPECT_FALSE(contention.add(0.01));
  EXPECT_FALSE(contention.add(0.15));
}

TEST(Spinning, AnIdleTeamHasMoreThreadsThanProcessorsAndEnds) {
  const int64_t before = num_threads();
  {
    const IdleTeam team(omp_get_num_procs());
    constexpr int kStable = 50;  // threads that are tried come first, and go
    int num_equal = 0;
    for (int i = 0; i < 2000 && num_equal < kStable; ++i) {
      num_equal = num_threads() == before + 2 ? num_equal + 1 : 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(num_equal, kStable);
  }
  for (int i = 0; i < 1000 && num_threads() > before; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(num_threads(), before);
}

TEST(Spinning, TheTimeReadyIsKnown) {
  const auto seconds = seconds_ready();
  if (!seconds) GTEST_SKIP() << "this kernel does not tell";
  EXPECT_GE(*seconds, 0);
}

TEST(Spinning, AWatchEndsWithItsOwner) {
  const SpinWatch watch(2);
  EXPECT_FALSE(watch.has_team()) << "not before the first period";
}

}  // namespace
}  // namespace sftrun::engine
