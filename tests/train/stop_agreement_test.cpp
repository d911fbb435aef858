#include "sftrun/train/stop_agreement.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "support/rank_threads.h"

namespace sftrun::train {
namespace {

/// Iterations until the stop.
int64_t iterations(StopAgreement& stop, const std::function<void()>& body) {
  int64_t count = 0;
  for (; stop.next() == 0; ++count) body();
  return count;
}

TEST(StopAgreement, AllRanksLeaveInTheSameIteration) {
  std::array<int64_t, 3> left{};
  test::run_ranks(3, [&](parallel::Communicator& comm) {
    std::atomic<int64_t> done{0};
    const auto own = [&] { return comm.rank() == 1 && done >= 1000 ? 75 : 0; };
    StopAgreement stop(comm, own);
    left[static_cast<size_t>(comm.rank())] = iterations(stop, [&] { ++done; });
    EXPECT_EQ(stop.agreed(), 75);
    EXPECT_EQ(comm.counts().all_gather.calls, 0) << "not counted";
    comm.leave();
  });
  EXPECT_GE(left[0], 1000);
  EXPECT_EQ(left[1], left[0]);
  EXPECT_EQ(left[2], left[0]);
}

TEST(StopAgreement, ShortIterationsExchangeSeldomAndLongOnesEachTime) {
  test::run_ranks(2, [&](parallel::Communicator& comm) {
    int64_t asked = 0, done = 0;
    StopAgreement often(comm, [&] { return ++asked, done >= 20000 ? 75 : 0; });
    iterations(often, [&] { ++done; });
    EXPECT_LT(asked, 100);
    asked = done = 0;
    StopAgreement each(comm, [&] { return ++asked, done >= 3 ? 130 : 0; });
    const auto slow = [&] {
      std::this_thread::sleep_for(std::chrono::duration<double>(StopAgreement::kEvery_s * 0.7));
      ++done;
    };
    EXPECT_EQ(iterations(each, slow), 3);
    EXPECT_EQ(asked, 4);
    comm.leave();
  });
}

TEST(StopAgreement, APipelineIsEmptiedSeldom) {
  test::run_ranks(2, [&](parallel::Communicator& comm) {
    StopAgreement stop(
        comm, [] { return 75; }, /*min_apart=*/8);
    EXPECT_EQ(iterations(stop, [] {}), 0) << "before the first";
    int64_t asked = 0;
    StopAgreement later(
        comm, [&] { return ++asked == 2 ? 75 : 0; }, 8);
    EXPECT_EQ(iterations(later, [] {}), 8);
    comm.leave();
  });
}

TEST(StopAgreement, OneRankAsksOnlyItself) {
  parallel::Communicator alone;
  int64_t done = 0;
  StopAgreement stop(
      alone, [&] { return done == 5 ? 130 : 0; }, 8);
  EXPECT_EQ(iterations(stop, [&] { ++done; }), 5);
}

}  // namespace
}  // namespace sftrun::train
