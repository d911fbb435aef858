#include "sftrun/core/for_each_together.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace sftrun {
namespace {

TEST(ForEachTogether, DoesEachOnce) {
  std::atomic<bool> has_failed{false};
  for (const size_t threads : {0, 1, 3, 100}) {
    std::vector<std::atomic<int>> done(17);
    for_each_together(done.size(), threads, has_failed, [&](size_t i) { ++done[i]; });
    for (const auto& count : done) EXPECT_EQ(count, 1);
  }
  for_each_together(0, 4, has_failed, [](size_t) { FAIL(); });
}

TEST(ForEachTogether, WaitsTogether) {
  std::atomic<bool> has_failed{false};
  std::atomic<int> waiting{0};
  for_each_together(3, 3, has_failed, [&](size_t) {
    for (++waiting; waiting < 3;) std::this_thread::yield();  // each needs the others
  });
  EXPECT_EQ(waiting, 3);
}

TEST(ForEachTogether, TheFirstFailureEndsIt) {
  std::atomic<bool> has_failed{false};
  std::atomic<int> begun{0};
  try {
    for_each_together(1000, 2, has_failed, [&](size_t i) {
      if (++begun; i == 3) throw std::runtime_error("three");
      while (i > 3 && !has_failed) std::this_thread::yield();
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "three");
  }
  EXPECT_TRUE(has_failed);
  EXPECT_LT(begun, 10);
}

}  // namespace
}  // namespace sftrun
