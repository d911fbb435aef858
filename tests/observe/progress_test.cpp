#include "sftrun/observe/progress.h"

#include <gtest/gtest.h>

namespace sftrun::observe {
namespace {

ProgressStep step_of(int64_t step, double seconds) {
  return {.step = step,
          .loss = 1.83421,
          .grad_norm = 0.9121,
          .learning_rate = 1.96e-4,
          .tokens = 1000,
          .step_seconds = seconds};
}

TEST(Progress, LineAsDocumented) {
  ProgressMeter meter(200);
  meter.add(step_of(17, 1.0));
  EXPECT_EQ(meter.line(),
            "step 17/200 loss 1.8342 grad_norm 0.912 lr 1.96e-04 tok/s 1000 eta 3m 03s");
}

TEST(Progress, ALoadBalancingLossIsShownBesideTheLoss) {
  ProgressMeter meter(200);
  ProgressStep step = step_of(17, 1.0);
  step.aux_loss = 2.25;
  meter.add(step);
  EXPECT_TRUE(meter.line().starts_with("step 17/200 loss 1.8342 aux_loss 2.2500 grad_norm 0.912"))
      << meter.line();
}

TEST(Progress, AMetricOfTheObjectiveHasItsOwnWord) {
  ProgressMeter meter(200);
  ProgressStep step = step_of(17, 1.0);
  step.word = "accuracy";
  step.value = 0.625;
  meter.add(step);
  EXPECT_TRUE(meter.line().starts_with("step 17/200 loss 1.8342 accuracy 0.62 grad_norm 0.912"))
      << meter.line();
}

TEST(Progress, TheFirstStepDoesNotSpoilTheRate) {
  ProgressMeter meter(100);
  meter.add(step_of(1, 60));
  EXPECT_NEAR(meter.seconds_left(), 99 * 60, 1e-9);
  meter.add(step_of(2, 2));
  EXPECT_NEAR(meter.seconds_left(), 98 * 2, 1e-9);
  EXPECT_NEAR(meter.tokens_per_second(), 500, 1e-9);
}

TEST(Progress, MeanAtFirstThenFollowsSlowly) {
  ProgressMeter meter(1000);
  meter.add(step_of(1, 60));
  meter.add(step_of(2, 1));
  meter.add(step_of(3, 3));
  EXPECT_NEAR(meter.tokens_per_second(), 500, 1e-9);  // the mean of 1 s and 3 s
  for (int64_t step = 4; step <= 100; ++step) meter.add(step_of(step, 1));
  EXPECT_NEAR(meter.tokens_per_second(), 1000, 1);
  meter.add(step_of(101, 2));  // one slow step moves the rate by a tenth
  EXPECT_NEAR(meter.tokens_per_second(), 1000 / 1.1, 1);
}

TEST(Progress, NothingLeftAtTheEnd) {
  ProgressMeter meter(2);
  EXPECT_EQ(meter.tokens_per_second(), 0);
  meter.add(step_of(1, 1));
  EXPECT_TRUE(meter.line().ends_with(" eta 1 s")) << meter.line();
  meter.add(step_of(2, 1));
  EXPECT_TRUE(meter.line().ends_with(" tok/s 1000")) << meter.line();
}

TEST(Progress, LessThanASecondLeft) {
  ProgressMeter meter(2);
  meter.add(step_of(1, 0.2));
  EXPECT_TRUE(meter.line().ends_with(" eta < 1 s")) << meter.line();
}

}  // namespace
}  // namespace sftrun::observe
