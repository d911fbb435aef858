#include "sftrun/train/best_evaluation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "../../src/train/checkpoint_state.h"
#include "sftrun/core/file.h"
#include "sftrun/train/checkpoint.h"
#include "support/temporary_directory.h"

namespace sftrun::train {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

/// Made by scripts/fixtures/make_best_evaluation.py.
Json reference() {
  return Json::parse(read_text_file(fs::path(SFTRUN_TEST_DATA) / "train" / "best_evaluation.json"));
}

config::TrainConfig judged_config_of(const Json& of_case) {
  config::TrainConfig config;
  config.metric_for_best_model = of_case["metric"];
  config.early_stopping_patience = of_case["patience"].get<int64_t>();
  config.early_stopping_threshold = of_case["threshold"];
  return config;
}

/// What transformers decided after an evaluation, and what is decided here.
void expect_same(const Json& decision, bool is_best, const BestEvaluation& best) {
  EXPECT_EQ(is_best, decision["is_best"].get<bool>());
  const BestState& state = best.state();
  EXPECT_EQ(state.step, decision["best_step"].get<int64_t>());
  EXPECT_EQ(state.num_worse, decision["num_worse"].get<int64_t>());
  EXPECT_EQ(best.should_stop(), decision["stops"].get<bool>());
  EXPECT_EQ(state.value.has_value(), !decision["best"].is_null());
  const double best_value = decision["best"].is_null() ? INFINITY : decision["best"].get<double>();
  EXPECT_EQ(state.value.value_or(INFINITY), best_value);
}

TEST(BestEvaluation, DecidesAsTransformers) {
  const Json cases = reference()["cases"];
  ASSERT_GE(cases.size(), 60U);
  for (const Json& of_case : cases) {
    SCOPED_TRACE(of_case.dump());
    BestEvaluation best(judged_config_of(of_case));
    EXPECT_EQ(best.state().greater_is_better, of_case["greater_is_better"].get<bool>());
    int64_t step = 0;
    for (size_t i = 0; i < of_case["values"].size(); ++i) {
      const Json& value = of_case["values"][i];
      const bool is_best = best.add(value.is_number() ? value.get<double>() : NAN, step += 10);
      expect_same(of_case["decisions"][i], is_best, best);
    }
  }
}

TEST(BestEvaluation, GoesOnFromACheckpoint) {
  for (const Json& of_case : reference()["cases"]) {
    SCOPED_TRACE(of_case.dump());
    auto best = std::make_unique<BestEvaluation>(judged_config_of(of_case));
    int64_t step = 0;
    for (size_t i = 0; i < of_case["values"].size(); ++i) {
      auto resumed = std::make_unique<BestEvaluation>(judged_config_of(of_case));
      ASSERT_TRUE(resumed->restore(best->state()));
      best = std::move(resumed);
      const Json& value = of_case["values"][i];
      const bool is_best = best->add(value.is_number() ? value.get<double>() : NAN, step += 10);
      expect_same(of_case["decisions"][i], is_best, *best);
    }
  }
}

TEST(BestEvaluation, DoesNotCompareByAnotherMetric) {
  config::TrainConfig config;
  config.load_best_model_at_end = true;
  BestEvaluation of_loss(config);
  of_loss.add(1, 10);
  config.metric_for_best_model = "rouge_l";
  BestEvaluation of_answers(config);
  EXPECT_FALSE(of_answers.restore(of_loss.state()));
  EXPECT_EQ(of_answers.metric(), "eval_rouge_l");
  EXPECT_EQ(of_answers.state().step, 0);
}

TEST(BestEvaluation, IsWantedOnlyIfSomethingDependsOnIt) {
  EXPECT_FALSE(BestEvaluation(config::TrainConfig()).is_wanted());
  config::TrainConfig patient, loads, named;
  patient.early_stopping_patience = 2;
  loads.load_best_model_at_end = true;
  named.metric_for_best_model = "eval_loss";
  for (const config::TrainConfig& config : {patient, loads, named})
    EXPECT_TRUE(BestEvaluation(config).is_wanted());
}

TEST(BestEvaluation, LossAndPerplexityAreBetterWhenSmaller) {
  config::TrainConfig config;
  const auto is_greater_better = [&](const char* metric) {
    config.metric_for_best_model = metric;
    return BestEvaluation(config).state().greater_is_better;
  };
  EXPECT_FALSE(is_greater_better("loss"));
  EXPECT_FALSE(is_greater_better("eval_a.jsonl_loss"));
  EXPECT_FALSE(is_greater_better("perplexity"));
  EXPECT_TRUE(is_greater_better("eval_token_accuracy"));
  config.greater_is_better = true;
  EXPECT_TRUE(is_greater_better("loss"));
}

TEST(AnswerBudget, GrowsWithTheTrainingAndShrinksWithTheAnswers) {
  config::TrainConfig config;
  config.generation_time_budget = 0.1;
  EXPECT_EQ(answer_seconds_allowed(config, 0, 0), 60);
  EXPECT_EQ(answer_seconds_allowed(config, 1000, 0), 160);
  EXPECT_EQ(answer_seconds_allowed(config, 1000, 150), 10);
  EXPECT_EQ(answer_seconds_allowed(config, 1000, 500), 0);
  config.generation_time_budget = 0;
  EXPECT_EQ(answer_seconds_allowed(config, 1000, 500), INFINITY);
}

TEST(AnswerBudget, HasNoLimitIfTheBestIsJudgedByAnswers) {
  config::TrainConfig config;
  config.metric_for_best_model = "eval_exact_match";
  EXPECT_EQ(answer_seconds_allowed(config, 0, 500), INFINITY);
}

TEST(Rotation, LeavesWhatTransformersLeaves) {
  const test::TemporaryDirectory directory;
  const Json rotations = reference()["rotations"];
  ASSERT_EQ(rotations.size(), 40U);
  int number = 0;
  for (const Json& rotation : rotations) {
    SCOPED_TRACE(rotation.dump());
    const fs::path folder = directory / std::to_string(number++);
    const CheckpointStore store(folder);
    TrainState state;
    for (const int64_t step : rotation["steps"]) {
      make_directories(store.path_of(step));
      state.step = step;
      state.identity = Json::object();
      write_state(store.path_of(step), state, 0);
    }
    state.best = {.step = rotation["best"].get<int64_t>()};
    store.keep_newest(rotation["limit"].get<int64_t>(), state);
    for (const int64_t step : rotation["steps"]) {
      const Json& left = rotation["left"];
      EXPECT_EQ(fs::exists(store.path_of(step)),
                std::find(left.begin(), left.end(), step) != left.end())
          << step;
    }
  }
}

}  // namespace
}  // namespace sftrun::train
