#include "sftrun/data/parallel_for.h"

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>

namespace sftrun::data {
namespace {

TEST(ParallelFor, CallsEveryIndexOnce) {
  for (const int threads : {1, 2, 7}) {
    for (const int64_t count : {0, 1, 31, 32, 33, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      parallel_for(count, threads, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      for (const auto& number : calls) ASSERT_EQ(number, 1);
    }
  }
}

TEST(ParallelFor, TheFirstErrorByIndexWins) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    try {
      parallel_for(1000, 4, [](int64_t i) {
        if (i == 40)
          std::this_thread::sleep_for(std::chrono::milliseconds(2));  // later ones fail sooner
        if (i >= 40 && i % 10 == 0) throw std::runtime_error(std::to_string(i));
      });
      FAIL() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "40");
    }
  }
}

TEST(ParallelFor, AStopInterruptsIt) {
  static std::atomic<bool> is_requested;
  static std::atomic<int> calls;
  is_requested = false;
  calls = 0;
  const Interruptible scope([] { return is_requested.load(); });
  EXPECT_THROW(parallel_for(100000, 2, [](int64_t) { is_requested = ++calls == 100; }),
               Interrupted);
  EXPECT_LT(calls, 200);
}

}  // namespace
}  // namespace sftrun::data
