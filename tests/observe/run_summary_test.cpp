#include "sftrun/observe/run_summary.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::observe {
namespace {

TEST(RunSummary, AddsUpAllStepsOfARun) {
  const test::TemporaryDirectory dir;
  const auto file = dir / "metrics.jsonl";
  write_file_atomically(
      file,
      R"({"step":0,"eval_loss":3.0})"
      "\n"
      R"({"step":1,"loss":2.5,"tokens":100,"examples":4,"step_seconds":0.5,"peak_memory_bytes":[5,9]})"
      "\n"
      R"({"step":1,"eval_loss":1.5})"
      "\n"
      R"({"step":2,"loss":null,"tokens":100,"step_seconds":0.5,"peak_memory_bytes":[4,4]})"
      "\n"
      R"({"step":3,"loss":1.25,"tokens":50,"examples":2,"step_seconds":1.5,"peak_memory_bytes":[7,6]})"
      "\n"
      R"({"step":3,"eval_loss":2.0})"
      "\n"
      R"({"step":4,"lo)");
  const RunSummary summary = read_run_summary(file);
  EXPECT_EQ(summary.first->step, 1);
  EXPECT_EQ(summary.first->loss, 2.5);
  EXPECT_EQ(summary.last->step, 3);
  EXPECT_EQ(summary.last->loss, 1.25);
  EXPECT_EQ(summary.tokens, 150);
  EXPECT_EQ(summary.examples, 6);
  EXPECT_EQ(summary.seconds, 2.0);
  EXPECT_EQ(summary.peak_memory_bytes, 9u);
  EXPECT_EQ(summary.first_eval->loss, 3.0);
  EXPECT_EQ(summary.best_eval->step, 1);
  EXPECT_EQ(summary.last_eval->loss, 2.0);
  const std::vector<std::string> lines = lines_of(summary);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[0].ends_with("150 tokens, 75 tokens/s, 10.8k examples/hour")) << lines[0];
}

/// Of GRPO the loss says little.
TEST(RunSummary, HasTheMetricThatTheObjectiveShows) {
  const test::TemporaryDirectory dir;
  const auto file = dir / "metrics.jsonl";
  write_file_atomically(file, R"({"step":0,"eval_reward":0.1})"
                              "\n"
                              R"({"step":1,"loss":0.0,"reward":0.25})"
                              "\n"
                              R"({"step":2,"loss":0.1,"reward":null})"
                              "\n"
                              R"({"step":3,"loss":0.1,"reward":0.75})"
                              "\n"
                              R"({"step":3,"eval_reward":0.9})"
                              "\n");
  const config::ShownMetric& shown = config::objective_info(config::Objective::kGrpo).shown;
  const RunSummary summary = read_run_summary(file, shown);
  EXPECT_EQ(summary.shown.first->loss, 0.25);
  EXPECT_EQ(summary.shown.last->step, 3);
  EXPECT_EQ(summary.shown.last_eval->loss, 0.9);
  const std::vector<std::string> lines = lines_of(summary);
  ASSERT_GE(lines.size(), 4u);
  EXPECT_EQ(lines[1], "reward 0.2500 at step 1, 0.7500 at step 3");
  EXPECT_EQ(lines[2], "validation reward 0.1000 at step 0, 0.9000 at step 3");
  EXPECT_EQ(lines[3], "loss 0.0000 at step 1, 0.1000 at step 3");
  EXPECT_FALSE(read_run_summary(file).shown.last) << "sft shows none";
}

TEST(RunSummary, APipeIsRefused) {
  const test::TemporaryDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "metrics.jsonl").c_str(), 0600), 0);
  test::expect_error<DataError>([&] { read_run_summary(dir / "metrics.jsonl"); },
                                {"is a named pipe", "metrics.jsonl"});
}

TEST(RunSummary, OfARunWithoutMetricsIsEmpty) {
  const RunSummary summary = read_run_summary("/nowhere/metrics.jsonl");
  EXPECT_FALSE(summary.last);
  EXPECT_TRUE(lines_of(summary).empty());
}

}  // namespace
}  // namespace sftrun::observe
