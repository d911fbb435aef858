#include "sftrun/config/best_metric.h"

#include "config_test_base.h"
#include "sftrun/core/error.h"
#include "support/expect_error.h"

namespace sftrun::config {
namespace {

using Names = std::vector<std::string>;

TEST(BestMetric, EqualSetNamesAreNumbered) {
  EXPECT_EQ(distinct_set_names({"a", "b", "a", "a"}), (Names{"a", "b", "a #2", "a #3"}));
  EXPECT_EQ(distinct_set_names({"a", "a #2", "a"}), (Names{"a", "a #2", "a #3"}));
}

TEST(BestMetric, TheShortestNameThatNoOtherSetHas) {
  EXPECT_EQ(losses_of_sets({"data/x.jsonl", "y.jsonl"}), (Names{"eval_x_loss", "eval_y_loss"}));
  EXPECT_EQ(losses_of_sets({"a/val.jsonl", "b/val.jsonl"}),
            (Names{"eval_a/val_loss", "eval_b/val_loss"}));
  EXPECT_EQ(losses_of_sets({"val.jsonl", "val.json"}),
            (Names{"eval_val.jsonl_loss", "eval_val.json_loss"}));
  EXPECT_EQ(losses_of_sets({"/d/val.jsonl", "/d/val.jsonl #2"}),
            (Names{"eval_val.jsonl_loss", "eval_val.jsonl #2_loss"}));
}

TEST(BestMetric, AFileOfSeveralFoldersNamesAllItsSets) {
  const Names sets = {"d/a/val.jsonl", "d/b/val.jsonl", "val"};
  EXPECT_EQ(sets_of_loss("eval_val_loss", sets), Names{"val"}) << "its whole name";
  EXPECT_EQ(sets_of_loss("eval_val.jsonl_loss", sets), (Names{sets[0], sets[1]}));
  EXPECT_EQ(sets_of_loss("eval_b/val_loss", sets), Names{sets[1]});
  EXPECT_EQ(sets_of_loss("eval_d/a/val.jsonl_loss", sets), Names{sets[0]});
  EXPECT_TRUE(sets_of_loss("eval_al_loss", sets).empty());
}

TEST(BestMetric, OnlyTheMetricsThemselvesNeedAnswers) {
  TrainConfig config;
  for (const char* name : {"rouge_l", "eval_rouge1", "eval_rouge2", "exact_match"}) {
    config.metric_for_best_model = name;
    EXPECT_TRUE(is_judged_by_answers(config)) << name;
    EXPECT_TRUE(is_greater_better(config)) << name;
  }
  for (const char* name : {"eval_rouge_dev_loss", "rouge_loss", "eval_exact_match_loss"}) {
    config.metric_for_best_model = name;
    EXPECT_FALSE(is_judged_by_answers(config)) << name;
    EXPECT_FALSE(is_greater_better(config)) << name;
  }
}

TrainConfig evaluated(EvalStrategy strategy, std::optional<int64_t> eval_steps, int64_t patience) {
  TrainConfig config;
  config.eval_strategy = strategy;
  config.eval_steps = eval_steps;
  config.early_stopping_patience = patience;
  return config;
}

TEST(EarlyStopping, EvaluationsAreCounted) {
  const TrainConfig steps = evaluated(EvalStrategy::kSteps, 10, 3);
  EXPECT_EQ(num_evaluations(steps, 9, 1), 1);
  EXPECT_EQ(num_evaluations(steps, 20, 1), 2);
  EXPECT_EQ(num_evaluations(steps, 21, 1), 3) << "after the last step, too";
  const TrainConfig epochs = evaluated(EvalStrategy::kEpoch, 10, 3);
  EXPECT_EQ(num_evaluations(epochs, 100, 2.0), 2);
  EXPECT_EQ(num_evaluations(epochs, 100, 2.5), 3);
  EXPECT_EQ(num_evaluations(epochs, 100, 0), 1) << "streamed";
  EXPECT_EQ(num_evaluations(evaluated(EvalStrategy::kNo, 10, 3), 100, 2), 0);
}

TEST(EarlyStopping, ThatCanNeverStopIsWarnedOf) {
  const TrainConfig steps = evaluated(EvalStrategy::kSteps, 30, 3);
  EXPECT_FALSE(early_stopping_warning(steps, 150, 5));
  EXPECT_FALSE(early_stopping_warning(steps, 150, 0)) << "nothing is evaluated";
  const std::string late = early_stopping_warning(steps, 120, 4).value();  // after its last step
  for (const char* part : {"train.early_stopping_patience 3 needs at least 5 evaluations",
                           "the run has 4; set train.eval_steps to at most 29",
                           "or lower train.early_stopping_patience to at most 2"})
    EXPECT_NE(late.find(part), std::string::npos) << late;
  EXPECT_EQ(num_evaluations(evaluated(EvalStrategy::kSteps, 29, 3), 120, 1), 5);
  const std::string one =
      early_stopping_warning(evaluated(EvalStrategy::kEpoch, {}, 3), 3, 1).value();
  EXPECT_TRUE(one.ends_with("the run has 1; train for longer")) << one;
}

using BestMetricOfRun = ConfigTest;

TEST_F(BestMetricOfRun, EarlyStoppingWithoutTheBestModelIsWarnedOf) {
  const std::vector<std::string> stops = {"data.val=val.jsonl", "train.early_stopping_patience=3"};
  const std::vector<std::string> warnings = load("", stops).warnings;
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_NE(warnings[0].find("set train.load_best_model_at_end: true"), std::string::npos);
  EXPECT_TRUE(load("", {stops[0], stops[1], "train.load_best_model_at_end=true"}).warnings.empty());
}

TEST_F(BestMetricOfRun, OneOfTwoSetsMustBeMeant) {
  const auto with = [&](const std::string& val, const std::string& metric) {
    return load("", {"data.val=" + val, "train.metric_for_best_model=" + metric});
  };
  const std::string two = "[a/val.jsonl, b/val.jsonl]";
  test::expect_error<ConfigError>([&] { with(two, "eval_val_loss"); },
                                  {"which is the loss of a/val.jsonl and of b/val.jsonl",
                                   "use eval_a/val_loss or eval_b/val_loss"});
  test::expect_error<ConfigError>(
      [&] { with(two, "eval_nope_loss"); },
      {"no validation set has this name", "use eval_loss or eval_a/val_loss or eval_b/val_loss"});
  for (const char* one : {"eval_val_loss", "eval_nope_loss"})
    test::expect_error<ConfigError>(
        [&] { with("a/val.jsonl", one); },
        {"but with one validation set there is only eval_loss", "use eval_loss"});
  with(two, "eval_b/val_loss");
  with("[rouge_dev.jsonl, a/val.jsonl]", "eval_rouge_dev_loss");
  with("[exact_match.jsonl, token_accuracy.jsonl]", "eval_token_accuracy_loss");
}

}  // namespace
}  // namespace sftrun::config
