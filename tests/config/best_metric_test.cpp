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

using BestMetricOfRun = ConfigTest;

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
  with(two, "eval_b/val_loss");
  with("[rouge_dev.jsonl, a/val.jsonl]", "eval_rouge_dev_loss");
  with("[exact_match.jsonl, token_accuracy.jsonl]", "eval_token_accuracy_loss");
}

}  // namespace
}  // namespace sftrun::config
