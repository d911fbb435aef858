#include "sftrun/observe/metrics.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "support/temporary_directory.h"

namespace sftrun::observe {
namespace {

using Json = nlohmann::ordered_json;
using test::TemporaryDirectory;

std::vector<Json> lines_of(const std::filesystem::path& path) {
  std::vector<Json> lines;
  for (const std::string& line : split(read_text_file(path), '\n')) {
    if (!line.empty()) lines.push_back(Json::parse(line));
  }
  return lines;
}

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

TEST(Metrics, TrainingLineHasTheKeysUsersRelyOn) {
  const TemporaryDirectory dir;
  MetricsWriter writer(dir / "metrics.jsonl");
  writer.write({.step = 3,
                .epoch = 0.25,
                .loss = 1.1,
                .grad_norm = 0.5,
                .learning_rate = 2e-4,
                .label_tokens = 100,
                .tokens = 300,
                .examples = 7,
                .tokens_per_second = 1234.5,
                .step_seconds = 0.3,
                .peak_memory_bytes = {1, 2},
                .loss_per_rank = {1.0, 1.2},
                .gpu_utilization = {},
                .parts = StepParts{.data = 0.01,
                                   .forward = 0.1,
                                   .backward = 0.15,
                                   .optimizer = 0.02,
                                   .communication = 0.015,
                                   .other = 0.005},
                .memory_used_bytes = {3, 4},
                .cpu_utilization = {99.5, 150}});
  const Json line = lines_of(dir / "metrics.jsonl").at(0);
  EXPECT_EQ(keys_of(line), (std::vector<std::string>{"step",
                                                     "epoch",
                                                     "loss",
                                                     "grad_norm",
                                                     "learning_rate",
                                                     "label_tokens",
                                                     "tokens",
                                                     "examples",
                                                     "tokens_per_second",
                                                     "step_seconds",
                                                     "peak_memory_bytes",
                                                     "loss_per_rank",
                                                     "gpu_utilization",
                                                     "memory_used_bytes",
                                                     "cpu_utilization",
                                                     "data_seconds",
                                                     "forward_seconds",
                                                     "backward_seconds",
                                                     "communication_seconds",
                                                     "optimizer_seconds",
                                                     "other_seconds"}));
  EXPECT_EQ(line["communication_seconds"], 0.015);
  EXPECT_EQ(line["loss"].get<double>(), 1.1);  // to the last bit
  EXPECT_EQ(line["peak_memory_bytes"], Json({1, 2}));
  EXPECT_EQ(line["gpu_utilization"], Json::array());
}

TEST(Metrics, RatesOfPartsStandAfterTheLearningRate) {
  const TemporaryDirectory dir;
  MetricsWriter writer(dir / "metrics.jsonl");
  writer.write(TrainMetrics{
      .step = 1, .learning_rate = 2e-4, .part_rates = {{"learning_rate/projector", 1e-3}}});
  const Json line = lines_of(dir / "metrics.jsonl").at(0);
  EXPECT_EQ(keys_of(line)[4], "learning_rate");
  EXPECT_EQ(keys_of(line)[5], "learning_rate/projector");
  EXPECT_EQ(line["learning_rate/projector"], 1e-3);
}

TEST(Metrics, ALoadBalancingLossStandsAfterTheLoss) {
  const TemporaryDirectory dir;
  MetricsWriter writer(dir / "metrics.jsonl");
  writer.write(TrainMetrics{.step = 1, .loss = 1.5, .aux_loss = 2.25});
  const Json line = lines_of(dir / "metrics.jsonl").at(0);
  EXPECT_EQ(keys_of(line)[3], "aux_loss");
  EXPECT_EQ(line["loss"], 1.5);
  EXPECT_EQ(line["aux_loss"], 2.25);
}

TEST(Metrics, EvaluationLineHasTheKeysUsersRelyOn) {
  const TemporaryDirectory dir;
  MetricsWriter writer(dir / "metrics.jsonl");
  writer.write({.step = 3, .eval_loss = 2.0, .eval_perplexity = 7.389, .eval_seconds = 1.5});
  writer.write({.step = 4,
                .eval_loss = 2.0,
                .eval_perplexity = 7.389,
                .answers = AnswerMetrics{.rouge1 = 0.6,
                                         .rouge2 = 0.25,
                                         .rouge_l = 0.5,
                                         .exact_match = 0.125,
                                         .num_answers = 8,
                                         .seconds = 2},
                .eval_seconds = 1.5});
  const auto lines = lines_of(dir / "metrics.jsonl");
  EXPECT_EQ(keys_of(lines.at(0)), (std::vector<std::string>{"step", "eval_loss", "eval_perplexity",
                                                            "eval_rouge_l", "eval_seconds"}));
  EXPECT_TRUE(lines[0]["eval_rouge_l"].is_null());
  EXPECT_EQ(lines[1]["eval_rouge_l"], 0.5);
  EXPECT_EQ(lines[1]["eval_rouge1"], 0.6);
  EXPECT_EQ(lines[1]["eval_rouge2"], 0.25);
  EXPECT_EQ(lines[1]["eval_exact_match"], 0.125);
  EXPECT_EQ(lines[1]["eval_answers"], 8);
  EXPECT_EQ(lines[1]["eval_answer_seconds"], 2.0);
  writer.write({.step = 5, .losses = {{"a.jsonl", 1.5}, {"b.jsonl", 2.5}}});
  EXPECT_EQ(lines_of(dir / "metrics.jsonl").at(2)["eval_losses"],
            (Json{{"a.jsonl", 1.5}, {"b.jsonl", 2.5}}));
}

TEST(Metrics, ValuesOfAnEvaluationHaveTheNamesOfTheFile) {
  const EvalMetrics metrics{.step = 5,
                            .eval_loss = 2,
                            .objective = {{"token_accuracy", 0.75}},
                            .losses = {{"data/a.jsonl", 1.5}, {"b.jsonl", 2.5}},
                            .answers = AnswerMetrics{.rouge_l = 0.5}};
  EXPECT_EQ(metrics.value_of("eval_loss"), 2);
  EXPECT_EQ(metrics.value_of("eval_token_accuracy"), 0.75);
  EXPECT_EQ(metrics.value_of("eval_rouge_l"), 0.5);
  EXPECT_EQ(metrics.value_of("eval_data/a.jsonl_loss"), 1.5);
  EXPECT_EQ(metrics.value_of("eval_a_loss"), 1.5);
  EXPECT_EQ(metrics.value_of("eval_b_loss"), 2.5);
  EXPECT_EQ(metrics.value_of("eval_perplexity"), std::nullopt);
  EXPECT_EQ(metrics.value_of("eval_c_loss"), std::nullopt);
  EXPECT_EQ(
      names_of_values(metrics),
      (std::vector<std::string>{"eval_loss", "eval_rouge_l", "eval_token_accuracy", "eval_rouge1",
                                "eval_rouge2", "eval_exact_match", "eval_a_loss", "eval_b_loss"}));
}

TEST(Metrics, TruncationMayDropTheLastEvaluation) {
  const TemporaryDirectory dir;
  const auto path = dir / "metrics.jsonl";
  {
    MetricsWriter writer(path);
    for (int64_t step = 1; step <= 3; ++step) {
      writer.write(TrainMetrics{.step = step});
      writer.write(EvalMetrics{.step = step});
    }
  }
  truncate_metrics_to_step(path, 2, /*keeps_evaluation=*/false);
  std::vector<std::pair<int64_t, bool>> kept;  // step, is an evaluation
  for (const Json& line : lines_of(path))
    kept.emplace_back(line["step"].get<int64_t>(), line.contains("eval_loss"));
  EXPECT_EQ(kept, (std::vector<std::pair<int64_t, bool>>{{1, false}, {1, true}, {2, false}}));
}

TEST(Metrics, NotFiniteIsNull) {
  const TemporaryDirectory dir;
  MetricsWriter writer(dir / "metrics.jsonl");
  writer.write(TrainMetrics{.step = 1, .loss = std::numeric_limits<double>::quiet_NaN()});
  EXPECT_TRUE(lines_of(dir / "metrics.jsonl").at(0)["loss"].is_null());
}

TEST(Metrics, AClosedWriterWritesNothing) {
  MetricsWriter closed;
  EXPECT_NO_THROW(closed.write(TrainMetrics{.step = 1}));
}

TEST(Metrics, TruncationKeepsStepsUpToTheCheckpoint) {
  const TemporaryDirectory dir;
  const auto path = dir / "metrics.jsonl";
  {
    MetricsWriter writer(path);
    for (int64_t step = 1; step <= 6; ++step) {
      writer.write(TrainMetrics{.step = step});
      if (step % 2 == 0) writer.write(EvalMetrics{.step = step});
    }
  }
  EXPECT_EQ(truncate_metrics_to_step(path, 4), 4);
  std::vector<int64_t> steps;
  for (const Json& line : lines_of(path)) steps.push_back(line["step"].get<int64_t>());
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 2, 3, 4, 4}));
}

TEST(Metrics, TruncationDropsATornLastLine) {
  const TemporaryDirectory dir;
  const auto path = dir / "metrics.jsonl";
  for (const char* torn : {"{\"step\":2,\"los", "{\"step\":2}", "garbage\n"}) {
    write_file_atomically(path, std::string("{\"step\":1}\n") + torn);
    truncate_metrics_to_step(path, 10);
    EXPECT_EQ(read_text_file(path), "{\"step\":1}\n");
  }
}

TEST(Metrics, TruncationRefusesAForeignFile) {
  const TemporaryDirectory dir;
  const auto path = dir / "metrics.jsonl";
  write_file_atomically(path, "{\"step\":1}\nhello\n{\"step\":2}\n");
  try {
    truncate_metrics_to_step(path, 1);
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_TRUE(error.where().ends_with("metrics.jsonl:2")) << error.where();
  }
}

TEST(Metrics, TruncationOfNothingIsFine) {
  const TemporaryDirectory dir;
  EXPECT_EQ(truncate_metrics_to_step(dir / "none.jsonl", 1), std::nullopt);
  write_file_atomically(dir / "empty.jsonl", "");
  EXPECT_EQ(truncate_metrics_to_step(dir / "empty.jsonl", 1), std::nullopt);
}

}  // namespace
}  // namespace sftrun::observe
