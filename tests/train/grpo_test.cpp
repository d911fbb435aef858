#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "sftrun/data/advantages.h"
#include "sftrun/train/objective.h"

namespace sftrun::train {
namespace {

using GrpoCase = nlohmann::ordered_json;

const GrpoCase& grpo_fixture() {
  static const GrpoCase read = [] {
    std::ifstream file(std::string(SFTRUN_TEST_DATA) + "/train/grpo.json");
    return GrpoCase::parse(file);
  }();
  return read;
}

Objective grpo_objective(const GrpoCase& settings) {
  GrpoCase train = {{"objective", "grpo"}};
  for (const auto& [key, value] : settings.items())
    if (key != "has_old") train[key] = value;
  if (settings["loss_type"] == "dr_grpo")
    train["max_completion_length"] = grpo_fixture()["max_completion_length"];
  GrpoCase config = config::to_json(config::RunConfig{});
  config["train"].update(train);
  return Objective(config::from_json(config).train);
}

/// GrpoAnswers [begin, end) of a case, as a micro-batch has them.
struct GrpoAnswers {
  GrpoAnswers(const GrpoCase& one, size_t begin, size_t end) {
    const GrpoCase& answers = one["answers"];
    std::map<std::string, std::vector<double>> rows;
    std::vector<int64_t> documents;
    std::vector<double> lengths, advantages, rewards;
    std::vector<uint8_t> cut_short;
    for (size_t i = begin; i < end; ++i) {
      const auto length = answers["lengths"][i].get<int64_t>();
      documents.insert(documents.end(), static_cast<size_t>(length),
                       static_cast<int64_t>(i - begin));
      for (const char* key : {"policy", "old", "reference", "sampled"})
        for (const GrpoCase& value : answers[key][i]) rows[key].push_back(value);
      lengths.push_back(static_cast<double>(length));
      advantages.push_back(one["expected"]["advantages"][i]);
      rewards.push_back(answers["rewards"][i]);
      cut_short.push_back(answers["is_cut_short"][i].get<bool>() ? 1 : 0);
    }
    const auto wide = [](const std::vector<double>& values) {
      return at::tensor(values, at::kDouble);
    };
    const GrpoCase& settings = one["settings"];
    sums.policy = at::zeros({static_cast<int64_t>(end - begin)}, at::kDouble);
    sums.lengths = wide(lengths);
    sums.rows = {.policy = wide(rows["policy"]),
                 .documents = at::tensor(documents, at::kLong),
                 .is_label = at::ones({std::ssize(documents)}, at::kBool)};
    if (settings["beta"] > 0) sums.rows.reference = wide(rows["reference"]);
    if (settings["has_old"]) sums.rows.old_logps = wide(rows["old"]);
    if (settings["sampling_correction"] != "off") sums.rows.sampled_logps = wide(rows["sampled"]);
    sums.advantages = wide(advantages);
    sums.scores = wide(rewards);
    sums.is_cut_short = at::tensor(cut_short, at::kByte).to(at::kBool);
  }
  DocumentSums sums;
};

BatchCounts counts_of_case(const GrpoCase& one) {
  BatchCounts counts;
  const GrpoCase& answers = one["answers"];
  for (size_t i = 0; i < answers["lengths"].size(); ++i) {
    const auto length = answers["lengths"][i].get<int64_t>();
    ++counts.documents;
    counts.label_tokens += length;
    if (answers["is_cut_short"][i]) counts.cut_short_labels += length;
  }
  return counts;
}

size_t num_answers(const GrpoCase& one) {
  return one["answers"]["lengths"].size();
}

std::vector<double> flat(const GrpoCase& by_answer) {
  std::vector<double> all;
  for (const GrpoCase& of_answer : by_answer)
    for (const GrpoCase& value : of_answer) all.push_back(value);
  return all;
}

double largest_difference(const at::Tensor& ours, const std::vector<double>& theirs) {
  const at::Tensor reference = at::tensor(theirs, at::kDouble);
  return ((ours - reference).abs().max() / reference.abs().max()).item<double>();
}

/// scripts/fixtures/make_grpo.py: TRL's own function in fp64.
TEST(Grpo, EqualsTheReference) {
  std::map<std::string, int> losses;
  for (const GrpoCase& one : grpo_fixture()["cases"]) {
    SCOPED_TRACE(one["settings"].dump());
    ++losses[one["settings"]["loss_type"]];
    const Objective objective = grpo_objective(one["settings"]);
    const BatchCounts totals = counts_of_case(one);
    const double terms = objective.count_terms(totals);
    const GrpoAnswers all(one, 0, num_answers(one));
    const ObjectiveValue value = objective.evaluate(all.sums, totals);
    const GrpoCase& expected = one["expected"];
    EXPECT_NEAR(value.loss_sum.item<double>() / terms, expected["loss"].get<double>(), 1e-10);
    EXPECT_LT(largest_difference(-value.weights.rows / terms, flat(expected["gradient"])), 1e-10);
    std::map<std::string, double> metrics;
    for (const ObjectiveMetric& metric : value.metrics) {
      metrics[metric.name] = metric.sum.item<double>() / terms;
      EXPECT_TRUE(objective.info().has_metric(metric.name)) << metric.name;
    }
    for (const auto& [name, mean] : expected["metrics"].items())
      EXPECT_NEAR(metrics.at(name), mean.get<double>(), 1e-6) << name;  // TRL counts in fp32
  }
  EXPECT_EQ(losses.size(), 5U);
}

/// One answer after the other gives the same as all at once.
TEST(Grpo, MicroBatchesChangeNothing) {
  for (const GrpoCase& one : grpo_fixture()["cases"]) {
    SCOPED_TRACE(one["settings"].dump());
    const Objective objective = grpo_objective(one["settings"]);
    const BatchCounts totals = counts_of_case(one);
    const ObjectiveValue all =
        objective.evaluate(GrpoAnswers(one, 0, num_answers(one)).sums, totals);
    double loss = 0;
    std::vector<at::Tensor> rows;
    for (size_t i = 0; i < num_answers(one); ++i) {
      const ObjectiveValue value = objective.evaluate(GrpoAnswers(one, i, i + 1).sums, totals);
      loss += value.loss_sum.item<double>();
      rows.push_back(value.weights.rows);
      EXPECT_EQ(value.metrics.size(), all.metrics.size());
    }
    EXPECT_NEAR(loss, all.loss_sum.item<double>(), 1e-12 * (1 + std::abs(loss)));
    EXPECT_TRUE(at::allclose(at::cat(rows), all.weights.rows, 1e-12, 1e-12));
  }
}

TEST(Grpo, AnEmptyMicroBatchHasTheSameMetrics) {
  const GrpoCase& one = grpo_fixture()["cases"][0];
  const Objective objective = grpo_objective(one["settings"]);
  const ObjectiveValue value = objective.evaluate(GrpoAnswers(one, 0, 0).sums, counts_of_case(one));
  EXPECT_EQ(value.loss_sum.item<double>(), 0);
  EXPECT_EQ(value.weights.rows.numel(), 0);
  EXPECT_EQ(value.metrics.size(),
            objective.evaluate(GrpoAnswers(one, 0, 2).sums, counts_of_case(one)).metrics.size());
}

/// The first step is on policy: each ratio is 1, the loss minus the mean advantage, the gradient the
/// advantage.
TEST(Grpo, OnPolicyTheGradientIsTheAdvantage) {
  for (const char* loss : {"dapo", "bnpo", "cispo"}) {
    GrpoCase one = grpo_fixture()["cases"][0];
    one["settings"]["loss_type"] = loss;
    one["settings"]["has_old"] = false;
    one["settings"]["epsilon_high"] = 1.0;
    const Objective objective = grpo_objective(one["settings"]);
    const BatchCounts totals = counts_of_case(one);
    const GrpoAnswers all(one, 0, num_answers(one));
    const ObjectiveValue value = objective.evaluate(all.sums, totals);
    const at::Tensor advantages = all.sums.advantages.index_select(0, all.sums.rows.documents);
    const double per_token =
        static_cast<double>(totals.documents) / static_cast<double>(totals.label_tokens);
    EXPECT_TRUE(at::allclose(value.weights.rows, advantages * per_token, 1e-12, 1e-12)) << loss;
  }
}

/// Tokens whose log-probability is not known count as on policy.
TEST(Grpo, UnknownLogProbabilitiesAreOnPolicy) {
  GrpoCase one = grpo_fixture()["cases"][0];
  const Objective objective = grpo_objective(one["settings"]);
  const BatchCounts totals = counts_of_case(one);
  GrpoAnswers known(one, 0, num_answers(one)), unknown = known;
  unknown.sums.rows.old_logps = at::full_like(known.sums.rows.policy, NAN);
  known.sums.rows.old_logps = at::Tensor();
  EXPECT_TRUE(at::equal(objective.evaluate(known.sums, totals).weights.rows,
                        objective.evaluate(unknown.sums, totals).weights.rows));
}

TEST(Advantages, EqualTheReference) {
  for (const GrpoCase& one : grpo_fixture()["cases"]) {
    const GrpoCase& answers = one["answers"];
    std::vector<data::Example> examples;
    for (size_t i = 0; i < num_answers(one); ++i) {
      data::Example example{.tokens = {1, 2}, .labels = {2, data::kIgnoreIndex}};
      example.score = answers["rewards"][i];
      example.score_kind = data::ScoreKind::kReward;
      example.group = answers["groups"][i].get<uint64_t>() + 1;
      examples.push_back(example);
    }
    const std::string scale = one["settings"]["scale_rewards"];
    const auto advantages = data::advantages_of(data::ExampleStore::in_memory(examples),
                                                scale == "group"   ? config::ScaleRewards::kGroup
                                                : scale == "batch" ? config::ScaleRewards::kBatch
                                                                   : config::ScaleRewards::kNone);
    EXPECT_EQ(advantages.num_groups, 3);
    for (size_t i = 0; i < examples.size(); ++i)
      EXPECT_NEAR(advantages.of_examples[i], one["expected"]["advantages"][i].get<double>(), 1e-12);
  }
}

TEST(Advantages, OfRecordsAreTaken) {
  data::Example given{.tokens = {1, 2}, .labels = {2, data::kIgnoreIndex}, .score = -0.25};
  given.score_kind = data::ScoreKind::kAdvantage;
  data::Example alone = given, equal = given;
  alone.score_kind = equal.score_kind = data::ScoreKind::kReward;
  alone.group = 1, equal.group = 2;
  const auto advantages = data::advantages_of(
      data::ExampleStore::in_memory({given, alone, equal, equal}), config::ScaleRewards::kGroup);
  EXPECT_EQ(advantages.of_examples, (std::vector<double>{-0.25, 0, 0, 0}));
  EXPECT_EQ(advantages.num_groups, 2);
  EXPECT_EQ(advantages.num_alone, 1);
  EXPECT_EQ(advantages.num_equal, 1);
}

}  // namespace
}  // namespace sftrun::train
