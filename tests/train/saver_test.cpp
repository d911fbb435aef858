#include "../../src/train/saver.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "tiny_run.h"

namespace sftrun::train {
namespace {

namespace fs = std::filesystem;

/// A saver with what it needs.
struct SavedRun {
  explicit SavedRun(const fs::path& run_dir, const std::string& every = "") : run(run_dir) {
    run.inputs.config.train.save_every = every;
    run.inputs.config.train.save_in_background = config::SaveInBackground::kOff;
    steps.emplace(run.inputs);
    log.emplace(run.inputs);
    saver.emplace(run.inputs, state, *steps, *log);
    state.identity = run.inputs.identity;
  }
  test::TinyRun run;
  TrainState state;
  std::optional<StepQueue> steps;
  std::optional<RunLog> log;
  std::optional<Saver> saver;
};

TEST(Savers, CheckpointsAreDueByStepsOrEpochs) {
  const test::TemporaryDirectory dir;
  SavedRun of(dir.path());
  config::TrainConfig& train = of.run.inputs.config.train;
  const auto due = [&] {
    std::vector<int64_t> steps;
    for (int64_t step = 0; step < 6; ++step)
      if (of.saver->is_due(step)) steps.push_back(step);
    return steps;
  };
  train.save_steps.reset();
  EXPECT_EQ(due(), std::vector<int64_t>());
  train.save_steps = 3;
  EXPECT_EQ(due(), (std::vector<int64_t>{2, 5}));
  train.save_strategy = config::SaveStrategy::kEpoch;
  EXPECT_EQ(due(), (std::vector<int64_t>{1, 3, 5}));
}

/// The ranks have other clocks: rank 0's counts, and travels with the values of a step.
TEST(Savers, TheTimerIsRankZerosAndEndsWithACheckpoint) {
  const test::TemporaryDirectory dir;
  SavedRun without(dir.path());
  HostNumbers numbers;
  without.saver->add_to(numbers);
  EXPECT_EQ(numbers.save_due, 0) << "no timer";
  SavedRun of(dir.path(), "1s");
  of.saver->add_to(numbers);
  EXPECT_EQ(numbers.save_due, 0) << "it began now";
  of.saver->start();
  StepReport report;
  of.saver->note(report);
  EXPECT_FALSE(of.saver->timer_expired());
  report.save_due = true;
  of.saver->note(report);
  report.save_due = false;
  of.saver->note(report);
  EXPECT_TRUE(of.saver->timer_expired()) << "until the next checkpoint";
  of.state.step = 1;
  of.saver->save(/*is_last=*/false);
  EXPECT_FALSE(of.saver->timer_expired());
}

TEST(Savers, WhatTheRunCanGoBackToIsSaid) {
  const test::TemporaryDirectory dir;
  std::vector<std::string> phases, told;
  SavedRun of(dir.path());
  of.run.inputs.hooks.on_event = [&](const TrainEvent& event) { phases.emplace_back(event.phase); };
  of.run.inputs.hooks.on_run_event = [&](const RunEvent& event) {
    told.push_back(event.details.at("checkpoint").get<std::string>());
  };
  of.saver->start();
  EXPECT_EQ(of.saver->newest_saved(), "no checkpoint was written yet");
  of.state.step = 3;
  of.saver->save(/*is_last=*/true);
  const fs::path checkpoint = dir.path() / "checkpoints" / "step-000003";
  EXPECT_EQ(of.saver->newest_saved(), "the newest checkpoint is of step 3");
  EXPECT_EQ(read_train_state(checkpoint).step, 3);
  EXPECT_EQ(phases, (std::vector<std::string>{"saving", "training"}));
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(fs::path(told[0]).filename(), "step-000003");

  SavedRun next(dir.path());
  next.run.inputs.resume_from = checkpoint;
  next.state.step = 3;
  EXPECT_TRUE(next.saver->has_resumed_step());
  next.state.step = 2;
  EXPECT_FALSE(next.saver->has_resumed_step());
  next.saver->start();
  EXPECT_FALSE(fs::exists(checkpoint)) << "it is of a later step than the one that was resumed";
  EXPECT_EQ(next.saver->newest_saved(), "the newest checkpoint is of step 2") << "elsewhere";
}

TEST(Savers, WeightsThatAreNotFiniteAreNotSaved) {
  const test::TemporaryDirectory dir;
  SavedRun of(dir.path());
  of.saver->start();
  of.state.step = 2;
  of.run.strategy->owned().flat.master[0] = std::numeric_limits<float>::infinity();
  test::expect_error<Error>([&] { of.saver->save(/*is_last=*/false); },
                            {"the weights are not finite after step 2; they are not saved",
                             "no checkpoint was written yet"});
  EXPECT_FALSE(fs::exists(dir.path() / "checkpoints" / "step-000002"));
}

}  // namespace
}  // namespace sftrun::train
