#include "../../src/train/run_log.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "support/temporary_directory.h"
#include "tiny_run.h"

namespace sftrun::train {
namespace {

namespace fs = std::filesystem;

std::vector<nlohmann::json> lines_of(const fs::path& file) {
  std::vector<nlohmann::json> lines;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// Inputs of a log, which needs no model.
struct LogInputs {
  explicit LogInputs(const fs::path& run_dir) {
    inputs.run_dir = run_dir;
    inputs.comm = &alone;
    inputs.batches = &batches;
    inputs.config.output.tensorboard = false;
    inputs.hooks.on_event = [this](const TrainEvent& event) { events.push_back(event); };
    inputs.hooks.on_run_event = [this](const RunEvent& event) { run_events.push_back(event); };
  }
  parallel::Communicator alone;
  test::RepeatedBatches batches;
  TrainerInputs inputs;
  std::vector<TrainEvent> events;
  std::vector<RunEvent> run_events;
};

StepReport report(double loss) {
  StepReport report;
  report.loss = loss;
  report.seconds = 0.5;
  report.loss_per_rank = {loss};
  report.peak_memory_bytes = report.memory_used_bytes = {1};
  report.cpu_utilization = {100};
  return report;
}

QueuedStep step(int64_t index) {
  QueuedStep queued{.step = index, .learning_rate = 0.25, .epochs = 1.5};
  queued.batch.tokens = 40;
  return queued;
}

TEST(RunLogs, AStepIsALineOfTheMetricsAndAnEvent) {
  const test::TemporaryDirectory dir;
  LogInputs of(dir.path());
  RunLog log(of.inputs);
  log.open({});
  log.note({.peak_memory_bytes = 7, .gpu_utilization = -1, .memory_used_bytes = 5});
  log.add_step(step(0), report(3));
  log.tell("saving", 1);
  const auto lines = lines_of(dir / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["step"], 1);
  EXPECT_EQ(lines[0]["loss"], 3);
  EXPECT_EQ(lines[0]["tokens_per_second"], 80);
  EXPECT_EQ(lines[0]["epoch"], 1.5);
  ASSERT_EQ(of.events.size(), 2U);
  EXPECT_EQ(of.events[0].phase, std::string("training"));
  EXPECT_EQ(of.events[1].phase, std::string("saving"));
  EXPECT_EQ(of.events[1].loss, 3) << "a new phase keeps the figures of the last step";
  EXPECT_EQ(of.events[1].memory_bytes, 7U);
  EXPECT_EQ(of.events[1].total_steps, test::kStepsOfRun);
  EXPECT_FALSE(of.events[1].gpu_percent) << "this rank has no reading";
}

/// The schedule scales all rates alike.
TEST(RunLogs, PartsWithRatesOfTheirOwnHaveThemInTheMetrics) {
  const test::TemporaryDirectory dir;
  LogInputs of(dir.path());
  of.inputs.config.train.learning_rate = 0.5;
  of.inputs.config.train.part_learning_rates[ModelPart::kVision] = 0.125;
  RunLog log(of.inputs);
  log.open({});
  log.add_step(step(0), report(3));
  const auto lines = lines_of(dir / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["learning_rate"], 0.25);
  EXPECT_EQ(lines[0]["learning_rate/vision"], 0.0625);
  EXPECT_FALSE(lines[0].contains("learning_rate/projector")) << "it has no rate of its own";
}

/// What a resumed run repeats is in the files once.
TEST(RunLogs, LaterStepsAreRemovedWhenTheRunGoesOn) {
  const test::TemporaryDirectory dir;
  LogInputs of(dir.path());
  const auto write = [&](const TrainState& state, int64_t first, int64_t end) {
    RunLog log(of.inputs);
    log.open(state);
    for (int64_t index = first; index < end; ++index) log.add_step(step(index), report(1));
    log.add_evaluation({.step = end, .eval_loss = 2}, {}, {}, "");
  };
  write({}, 0, 3);
  of.inputs.resume_from = dir / "checkpoints" / "step-000002";
  write({.step = 2}, 2, 3);
  EXPECT_EQ(lines_of(dir / "metrics.jsonl").size(), 4U) << "three steps and an evaluation";
  TrainState interrupted{.step = 3};
  interrupted.evaluation_due = true;
  write(interrupted, 3, 3);
  EXPECT_EQ(lines_of(dir / "metrics.jsonl").size(), 4U) << "the evaluation is repeated";
  of.inputs.resume_from.reset();
  write({}, 0, 0);
  EXPECT_EQ(lines_of(dir / "metrics.jsonl").size(), 1U) << "a new run";
}

TEST(RunLogs, AnEvaluationIsToldToTheUsersCommandAndTheLog) {
  const test::TemporaryDirectory dir;
  log::configure({.console = log::Level::kOff, .file = dir / "log"});
  LogInputs of(dir.path());
  RunLog run_log(of.inputs);
  run_log.open({});
  const observe::EvalMetrics metrics{.step = 2, .eval_loss = 1.25, .losses = {{"one", 1.5}}};
  run_log.add_evaluation(metrics, {.num_terms = 9, .num_labels = 9}, {}, "eval_loss");
  log::configure({.console = log::Level::kOff});
  const std::string text = read_text_file(dir / "log");
  EXPECT_NE(text.find("step 2/4 eval_loss 1.2500 (9 label tokens"), std::string::npos) << text;
  EXPECT_NE(text.find(", the best eval_loss so far"), std::string::npos) << text;
  EXPECT_NE(text.find("  one: eval_loss 1.5000"), std::string::npos) << text;
  ASSERT_EQ(of.run_events.size(), 1U);
  EXPECT_EQ(of.run_events[0].name, std::string("evaluation"));
  EXPECT_EQ(of.run_events[0].details, metrics.to_json());
}

TEST(RunLogs, ASkippedStepIsSaidWithTheNewLossScale) {
  const test::TemporaryDirectory dir;
  log::configure({.console = log::Level::kOff, .file = dir / "log"});
  LogInputs of(dir.path());
  RunLog run_log(of.inputs);
  run_log.open({});
  StepReport skipped = report(1);
  skipped.skipped = true;
  skipped.loss_scale = 1024;
  run_log.add_step(step(2), skipped);
  log::configure({.console = log::Level::kOff});
  const std::string text = read_text_file(dir / "log");
  EXPECT_NE(text.find("step 3: gradients overflowed in fp16; the update was skipped and the loss "
                      "scale halved to 1024"),
            std::string::npos)
      << text;
  EXPECT_EQ(lines_of(dir / "metrics.jsonl").at(0)["loss_scale"], 1024);
}

}  // namespace
}  // namespace sftrun::train
