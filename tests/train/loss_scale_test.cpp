#include "sftrun/train/loss_scale.h"

#include <gtest/gtest.h>

#include <limits>

namespace sftrun::train {
namespace {

TEST(LossScale, IsOneWhereItIsNotNeeded) {
  LossScale scale(/*is_active=*/false);
  EXPECT_EQ(scale.value(), 1);
  EXPECT_TRUE(scale.accept(false));
  EXPECT_EQ(scale.value(), 1);
  EXPECT_EQ(scale.state().skipped_steps, 0);
}

// torch.amp.GradScaler's defaults.
TEST(LossScale, GrowsAfterTwoThousandFiniteSteps) {
  LossScale scale(/*is_active=*/true);
  EXPECT_EQ(scale.value(), 65536);
  for (int step = 1; step < 2000; ++step) EXPECT_TRUE(scale.accept(true));
  EXPECT_EQ(scale.value(), 65536);
  EXPECT_TRUE(scale.accept(true));
  EXPECT_EQ(scale.value(), 2 * 65536);
}

TEST(LossScale, HalvesAndSkipsWhereGradientsOverflow) {
  LossScale scale(/*is_active=*/true);
  for (int step = 0; step < 1999; ++step) scale.accept(true);
  EXPECT_FALSE(scale.accept(false));
  EXPECT_EQ(scale.value(), 32768);
  EXPECT_EQ(scale.state().skipped_steps, 1);
  EXPECT_TRUE(scale.accept(true));
  EXPECT_EQ(scale.value(), 32768);  // the steps before do not count any more
}

TEST(LossScale, GivesUpWhereHalvingCannotHelp) {
  LossScale scale(/*is_active=*/true);
  int skipped = 0;
  while (!scale.is_exhausted()) {
    scale.accept(false);
    ++skipped;
  }
  EXPECT_EQ(skipped, 27);  // 2^16 down to 2^-11
}

TEST(LossScale, GoesOnFromItsState) {
  LossScale first(/*is_active=*/true), second(/*is_active=*/true);
  first.accept(false);
  for (int step = 0; step < 1999; ++step) first.accept(true);
  second.restore(first.state());
  EXPECT_TRUE(second.accept(true));
  EXPECT_EQ(second.value(), 65536);
  EXPECT_EQ(second.state().skipped_steps, 1);
}

// What a damaged file may say.
TEST(LossScale, RefusesStatesThatNoRunIsIn) {
  constexpr int64_t kSteps = 100;
  EXPECT_TRUE(LossScale::is_possible({65536, 100, 0}, kSteps));
  EXPECT_TRUE(LossScale::is_possible({1.0 / 1024, 0, 26}, kSteps));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double value :
       {0.0, -4.0, 1e-30, 3.0, 65537.0, nan, std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(LossScale::is_possible({value, 0, 0}, kSteps)) << value;
  }
  EXPECT_FALSE(LossScale::is_possible({65536, 2000, 0}, 5000));
  EXPECT_FALSE(LossScale::is_possible({65536, 101, 0}, kSteps));
  EXPECT_FALSE(LossScale::is_possible({65536, 0, 101}, kSteps));
  EXPECT_FALSE(LossScale::is_possible({65536, -1, 0}, kSteps));
}

}  // namespace
}  // namespace sftrun::train
