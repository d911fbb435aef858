#include "sftrun/train/step_timer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "sftrun/core/clock.h"

// Devices with a clock of their own: tests/cuda/runtime and tests/gpu.
namespace sftrun::train {
namespace {

/// Spends at least so long.
void spend(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

double sum(const observe::StepParts& parts) {
  double total = 0;
  for (const auto& [name, seconds] : observe::named_parts(parts)) total += seconds;
  return total;
}

TEST(StepTimer, WaitsAreCommunicationWhateverTheWork) {
  EXPECT_EQ(part_of(Work::kBackward, false), StepPart::kBackward);
  EXPECT_EQ(part_of(Work::kBackward, true), StepPart::kCommunication);
  EXPECT_EQ(part_of(Work::kTraining, false), StepPart::kOther);
}

TEST(StepTimer, FollowsARanksActivity) {
  Activity activity;
  StepTimer timer(at::kCPU);
  activity.on_change([&](Work work, bool waits) { timer.mark(work, waits); });
  const double before = monotonic_seconds();
  timer.begin();
  {
    const WorkScope loading(&activity, Work::kDataLoader);
    spend(2);
  }
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    {
      const WorkScope pass(&activity, Work::kForward);
      spend(3);
    }
    const WorkScope pass(&activity, Work::kBackward);
    spend(4);
    const WaitScope wait(&activity, "all_reduce");
    spend(5);
  }
  {
    const WorkScope updating(&activity, Work::kOptimizer);
    spend(6);
  }
  timer.end();
  const double passed = monotonic_seconds() - before;
  const WorkScope later(&activity, Work::kEvaluating);  // belongs to no step
  spend(1);
  const observe::StepParts parts = timer.read();
  EXPECT_GE(parts.data, 0.002);
  EXPECT_GE(parts.forward, 0.006);
  EXPECT_GE(parts.backward, 0.008);
  EXPECT_GE(parts.communication, 0.010);
  EXPECT_GE(parts.optimizer, 0.006);
  EXPECT_LE(sum(parts), passed);  // nothing is counted twice
  EXPECT_GE(sum(parts), 0.032);
}

TEST(StepTimer, EachStepBeginsAnew) {
  StepTimer timer(at::kCPU);
  timer.begin();
  timer.mark(Work::kForward, false);
  spend(20);
  timer.end();
  EXPECT_GE(timer.read().forward, 0.020);
  timer.begin();
  EXPECT_EQ(sum(timer.read()), 0);  // not complete yet
  timer.mark(Work::kBackward, false);
  timer.end();
  EXPECT_EQ(timer.read().forward, 0);
}

}  // namespace
}  // namespace sftrun::train
