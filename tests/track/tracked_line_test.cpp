#include "tracked_line.h"

#include <gtest/gtest.h>

#include <map>

namespace sftrun::track {
namespace {

std::map<std::string, double> values_of(const TrackedLine& line) {
  return {line.values.begin(), line.values.end()};
}

TEST(TrackedLine, NamesAreThoseOfTensorBoard) {
  const auto line = tracked_line(
      R"({"step": 3, "loss": 2.5, "aux_loss": null, "learning_rate/projector": 1e-4, "forward_seconds": 0.25,)"
      R"( "step_seconds": 0.5, "loss_per_rank": [2, null, 3], "peak_memory_bytes": [7], "gpu_utilization": []})");
  ASSERT_TRUE(line);
  EXPECT_EQ(line->step, 3);
  EXPECT_FALSE(line->is_evaluation);
  EXPECT_EQ(line->seconds, 0.5);
  const std::map<std::string, double> expected = {
      {"train/loss", 2.5},        {"train/learning_rate/projector", 1e-4},
      {"time/forward", 0.25},     {"rank_0/loss", 2},
      {"rank_2/loss", 3},         {"rank_0/peak_memory_bytes", 7},
      {"train/step_seconds", 0.5}};
  EXPECT_EQ(values_of(*line), expected);
  EXPECT_EQ(line->values.back().first, kLastOfStep);
}

TEST(TrackedLine, Evaluations) {
  const auto line =
      tracked_line(R"({"step": 0, "eval_loss": 1.5, "eval_perplexity": null, "eval_seconds": 2,)"
                   R"( "eval_losses": {"a.jsonl": 1, "b.jsonl": 2}})");
  ASSERT_TRUE(line);
  EXPECT_TRUE(line->is_evaluation);
  const std::map<std::string, double> expected = {
      {"eval/loss", 1.5}, {"eval/loss/a.jsonl", 1}, {"eval/loss/b.jsonl", 2}, {"eval/seconds", 2}};
  EXPECT_EQ(values_of(*line), expected);
  EXPECT_EQ(line->values.back().first, kLastOfEvaluation);
}

TEST(TrackedLine, OtherTextsAreNoLines) {
  for (const char* text :
       {"", "{", "[1]", R"({"loss": 1})", R"({"step": "1"})", R"({"step": 1.5})"})
    EXPECT_FALSE(tracked_line(text)) << text;
}

TEST(Position, HasLinesOfItsKindOnly) {
  Position position;
  const TrackedLine step{.step = 2}, evaluation{.step = 2, .is_evaluation = true};
  EXPECT_FALSE(position.has(TrackedLine{}));
  position.add(step);
  EXPECT_TRUE(position.has(step));
  EXPECT_FALSE(position.has(evaluation));
  position.add(evaluation);
  EXPECT_TRUE(position.has(evaluation));
  EXPECT_FALSE(position.has(TrackedLine{.step = 3}));
}

}  // namespace
}  // namespace sftrun::track
