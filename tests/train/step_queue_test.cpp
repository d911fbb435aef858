#include "../../src/train/step_queue.h"

#include <gtest/gtest.h>

#include "support/temporary_directory.h"
#include "tiny_run.h"

namespace sftrun::train {
namespace {

StepReport train_step(StepQueue& steps, int64_t step) {
  steps.queue(step, [] { return HostNumbers{.stop_exit_code = 75, .work = {9}}; });
  EXPECT_EQ(steps.num_queued(), 1U);
  const QueuedStep queued = steps.take();
  EXPECT_EQ(queued.step, step);
  StepReport report = steps.read(queued);
  steps.finish(queued, report);
  return report;
}

at::Tensor weights_of(const test::TinyRun& run) {
  return run.strategy->owned().flat.master.clone();
}

TEST(StepQueues, AStepIsComputedReadAndFinished) {
  const test::TemporaryDirectory dir;
  test::TinyRun run(dir.path());
  StepQueue steps(run.inputs);
  EXPECT_FALSE(steps.reads_later()) << "a CPU has nothing to wait for";
  EXPECT_GT(steps.optimizer_bytes(), 0U);
  const at::Tensor before = weights_of(run);
  const StepReport first = train_step(steps, 0);
  EXPECT_FALSE(at::equal(weights_of(run), before));
  EXPECT_GT(first.seconds, 0);
  EXPECT_EQ(first.stop_exit_code, 75) << "what the host said";
  ASSERT_EQ(first.loss_per_rank.size(), 1U);
  EXPECT_NEAR(first.loss_per_rank[0], first.loss, 1e-12) << "all terms are this rank's";
  StepReport last = first;
  for (int64_t step = 1; step < test::kStepsOfRun; ++step) last = train_step(steps, step);
  EXPECT_LT(last.loss, first.loss);
}

/// The weights move in `finish` only, so that a step that is not finite changes none.
TEST(StepQueues, ReadingLeavesTheWeights) {
  const test::TemporaryDirectory dir;
  test::TinyRun run(dir.path());
  StepQueue steps(run.inputs);
  const at::Tensor before = weights_of(run);
  steps.queue(0, [] { return HostNumbers{}; });
  const QueuedStep queued = steps.take();
  StepReport report = steps.read(queued);
  EXPECT_TRUE(at::equal(weights_of(run), before));
  report.skipped = true;
  steps.finish(queued, report);
  EXPECT_TRUE(at::equal(weights_of(run), before)) << "fp16: the step is left out";
}

TEST(StepQueues, TheLongestBatchLeavesTheRunAsItIs) {
  const test::TemporaryDirectory dir;
  test::TinyRun one(dir.path()), other(dir.path());
  StepQueue plain(one.inputs), tried(other.inputs);
  tried.try_longest(0);
  EXPECT_TRUE(at::equal(weights_of(other), weights_of(one)));
  for (int64_t step = 0; step < 2; ++step) {
    const StepReport expected = train_step(plain, step), actual = train_step(tried, step);
    EXPECT_EQ(actual.loss, expected.loss);
    EXPECT_EQ(actual.grad_norm, expected.grad_norm);
  }
  EXPECT_TRUE(at::equal(weights_of(other), weights_of(one)));
}

TEST(StepQueues, AScheduleWithoutARateLearnsNothing) {
  const test::TemporaryDirectory dir;
  test::TinyRun run(dir.path());
  EXPECT_FALSE(StepQueue(run.inputs).learns_nothing());
  run.inputs.config.train.learning_rate = 0;
  EXPECT_TRUE(StepQueue(run.inputs).learns_nothing());
}

/// The timers follow the rank's activity as long as the queue lives.
TEST(StepQueues, MeasuresThePartsOfAStep) {
  const test::TemporaryDirectory dir;
  test::TinyRun run(dir.path());
  Activity activity;
  run.inputs.hooks.activity = &activity;
  {
    StepQueue steps(run.inputs);
    const StepReport report = train_step(steps, 0);
    ASSERT_TRUE(report.parts);
    EXPECT_GT(report.parts->forward, 0);
    EXPECT_GT(report.parts->backward, 0);
    EXPECT_GE(report.parts->other, 0);
  }
  activity.set_work(Work::kTraining);  // tells nobody
}

}  // namespace
}  // namespace sftrun::train
