#include "../../src/train/evaluations.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "tiny_run.h"

namespace sftrun::train {
namespace {

/// Evaluations with what they need. Validation data are those of training.
struct EvaluatedRun {
  explicit EvaluatedRun(const std::filesystem::path& run_dir) : run(run_dir), log(run.inputs) {
    run.add_validation();
    run.inputs.hooks.on_event = [this](const TrainEvent& event) {
      phases.emplace_back(event.phase);
    };
  }
  Evaluations make() { return {run.inputs, state, objective, log}; }

  test::TinyRun run;
  TrainState state;
  Objective objective{config::TrainConfig{}};
  RunLog log;
  std::vector<std::string> phases;
};

std::vector<int64_t> due_steps(const Evaluations& evaluations) {
  std::vector<int64_t> steps;
  for (int64_t step = 0; step < 5; ++step)
    if (evaluations.is_due(step, /*is_last=*/step == 4)) steps.push_back(step);
  return steps;
}

TEST(EvaluationsOfARun, AreDueByStepsOrEpochsAndAtTheEnd) {
  const test::TemporaryDirectory dir;
  EvaluatedRun of(dir.path());
  config::TrainConfig& train = of.run.inputs.config.train;
  EXPECT_EQ(due_steps(of.make()), (std::vector<int64_t>{1, 3, 4}));
  train.eval_steps = 3;
  EXPECT_EQ(due_steps(of.make()), (std::vector<int64_t>{2, 4}));
  train.eval_strategy = config::EvalStrategy::kEpoch;
  EXPECT_EQ(due_steps(of.make()), (std::vector<int64_t>{1, 3, 4}));
  train.eval_strategy = config::EvalStrategy::kNo;
  EXPECT_EQ(due_steps(of.make()), std::vector<int64_t>());
  train.eval_strategy = config::EvalStrategy::kSteps;
  of.run.inputs.val = nullptr;
  EXPECT_EQ(due_steps(of.make()), std::vector<int64_t>()) << "no data";
  EXPECT_EQ(of.make().count(4, 2), 0);
}

TEST(EvaluationsOfARun, AStopLeavesThemDue) {
  const test::TemporaryDirectory dir;
  EvaluatedRun of(dir.path());
  of.state.evaluation_due = true;
  Evaluations evaluations = of.make();
  of.run.inputs.hooks.stop_exit_code = [] { return 130; };
  EXPECT_EQ(evaluations.run().stop_exit_code, 130);
  EXPECT_TRUE(of.state.evaluation_due);
  EXPECT_TRUE(evaluations.last().is_null());
  EXPECT_EQ(of.phases, (std::vector<std::string>{"evaluating", "training"}));
  of.run.inputs.hooks.stop_exit_code = [] { return 0; };
  EXPECT_EQ(evaluations.run().stop_exit_code, 0);
  EXPECT_FALSE(of.state.evaluation_due);
  EXPECT_GT(evaluations.last()["eval_loss"].get<double>(), 1);
}

/// Answers that a stop interrupts are repeated, and have their time again.
TEST(EvaluationsOfARun, SpendTheTimeOfCompleteAnswersOnly) {
  const test::TemporaryDirectory dir;
  EvaluatedRun of(dir.path());
  int code = 75;
  of.run.inputs.hooks.answer_validation = [&](int64_t, double, const std::set<int64_t>&) {
    return AnswerEvaluation{
        .stop_exit_code = code, .scores = observe::AnswerMetrics{}, .seconds = 9};
  };
  Evaluations evaluations = of.make();
  EXPECT_EQ(evaluations.run().stop_exit_code, 75);
  EXPECT_EQ(of.state.answer_seconds, 0);
  code = 0;
  EXPECT_EQ(evaluations.run().stop_exit_code, 0);
  EXPECT_EQ(of.state.answer_seconds, 9);
}

TEST(EvaluationsOfARun, TheBestAsksForACheckpoint) {
  const test::TemporaryDirectory dir;
  EvaluatedRun of(dir.path());
  of.run.inputs.config.train.load_best_model_at_end = true;
  Evaluations evaluations = of.make();
  evaluations.start();
  EXPECT_FALSE(evaluations.run().asks_for_checkpoint) << "before the first step";
  EXPECT_EQ(evaluations.best(), nullptr);
  of.state.step = 2;
  EXPECT_TRUE(evaluations.run().asks_for_checkpoint);
  EXPECT_FALSE(evaluations.wants_best_loaded()) << "it is the last step's";
  of.state.step = 3;
  EXPECT_FALSE(evaluations.run().asks_for_checkpoint) << "the same loss";
  ASSERT_NE(evaluations.best(), nullptr);
  EXPECT_EQ(evaluations.best()->step, 2);
  EXPECT_TRUE(evaluations.wants_best_loaded());
  test::expect_error<DataError>(
      [&] { evaluations.load_best(); },
      {"the best model cannot be loaded", "step-000002", "train.load_best_model_at_end=false"});
  of.run.inputs.config.train.load_best_model_at_end = false;
  EXPECT_FALSE(evaluations.wants_best_loaded());
}

/// The checkpoint of the best evaluation was removed while the run was stopped.
TEST(EvaluationsOfARun, ForgetABestWithoutACheckpoint) {
  const test::TemporaryDirectory dir;
  EvaluatedRun of(dir.path());
  of.run.inputs.config.train.load_best_model_at_end = true;
  {
    Evaluations evaluations = of.make();
    evaluations.start();
    of.state.step = 2;
    evaluations.run();
  }
  of.state.step = 3;
  Evaluations resumed = of.make();
  resumed.start();
  EXPECT_EQ(resumed.best(), nullptr);
}

TEST(EvaluationsOfARun, TheMetricMustBeOfASetThatExists) {
  const test::TemporaryDirectory dir;
  EvaluatedRun of(dir.path());
  of.run.inputs.config.train.load_best_model_at_end = true;
  of.run.inputs.config.train.metric_for_best_model = "eval_other_loss";
  test::expect_error<ConfigError>([&] { of.make(); },
                                  {"train.metric_for_best_model", "eval_other_loss"});
}

}  // namespace
}  // namespace sftrun::train
