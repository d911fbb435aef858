#include "sftrun/train/objective.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "../../src/train/objectives/pairs.h"
#include "sftrun/data/example.h"
#include "support/tensors.h"

namespace sftrun::train {
namespace {

Objective dpo(double beta) {
  config::TrainConfig config;
  config.objective = config::Objective::kDpo;
  config.beta = beta;
  return Objective(config);
}

at::Tensor doubles(const nlohmann::json& values) {
  return at::tensor(values.get<std::vector<double>>(), at::kDouble);
}

std::map<std::string, double> numbers_of(const ObjectiveValue& value) {
  std::map<std::string, double> numbers = {{"loss", value.loss_sum.item<double>()}};
  for (const ObjectiveMetric& metric : value.metrics)
    numbers[metric.name] = metric.sum.item<double>();
  return numbers;
}

/// scripts/fixtures/make_dpo.py: TRL's formulas in fp64, gradients by autograd.
TEST(Dpo, EqualsTrl) {
  std::ifstream file(std::string(SFTRUN_TEST_DATA) + "/train/dpo.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 3U);
  for (const auto& one : cases) {
    const DocumentSums sums{.policy = doubles(one["policy"]),
                            .reference = doubles(one["reference"])};
    const ObjectiveValue value = dpo(one["beta"]).evaluate(sums);
    const auto numbers = numbers_of(value);
    ASSERT_EQ(numbers.size(), one["sums"].size());
    for (const auto& [name, sum] : one["sums"].items())
      EXPECT_NEAR(numbers.at(name), sum.get<double>(), 1e-12 * (1 + std::abs(sum.get<double>())))
          << name;
    // The head multiplies gradients of -log p.
    EXPECT_TRUE(test::close(value.weights, -doubles(one["d_policy"]), 1e-12));
  }
}

TEST(Dpo, BeginsAtTheLogarithmOfTwo) {
  const at::Tensor log_p = test::normal({6}, 1, at::kDouble) * 50;
  const ObjectiveValue value = dpo(0.1).evaluate({.policy = log_p, .reference = log_p});
  EXPECT_NEAR(value.loss_sum.item<double>(), 3 * std::log(2.0), 1e-12);
  EXPECT_TRUE(test::close(value.weights,
                          at::tensor({0.05, -0.05, 0.05, -0.05, 0.05, -0.05}, at::kDouble), 1e-12));
  EXPECT_EQ(numbers_of(value).at("rewards/accuracies"), 0);
}

TEST(Dpo, IsFiniteFarFromTheReference) {
  const at::Tensor far = at::tensor({1e5, -1e5, -1e5, 1e5}, at::kDouble);
  const ObjectiveValue value = dpo(1).evaluate({.policy = far, .reference = at::zeros_like(far)});
  EXPECT_NEAR(value.loss_sum.item<double>(), 2e5, 1e-6);
  EXPECT_TRUE(at::equal(value.weights, at::tensor({0.0, -0.0, 1.0, -1.0}, at::kDouble)));
}

/// Pairs over several micro-batches or ranks have the sums and weights that they have together.
TEST(Dpo, DoesNotDependOnHowPairsAreDivided) {
  const at::Tensor policy = test::normal({10}, 1, at::kDouble) * 20,
                   reference = test::normal({10}, 2, at::kDouble) * 20;
  const Objective objective = dpo(0.3);
  const auto of = [&](int64_t first, int64_t count) {
    return objective.evaluate(
        {.policy = policy.narrow(0, first, count), .reference = reference.narrow(0, first, count)});
  };
  const ObjectiveValue whole = of(0, 10);
  std::vector<at::Tensor> weights;
  std::map<std::string, double> sums;
  int64_t terms = 0;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 4}, {4, 0}, {4, 2}, {6, 4}}) {
    const ObjectiveValue part = of(first, count);
    weights.push_back(part.weights);
    for (const auto& [name, sum] : numbers_of(part)) sums[name] += sum;
    terms += objective.count_terms({.label_tokens = 99, .documents = count});
  }
  EXPECT_TRUE(at::equal(at::cat(weights), whole.weights));
  for (const auto& [name, sum] : numbers_of(whole)) EXPECT_NEAR(sums.at(name), sum, 1e-12) << name;
  EXPECT_EQ(terms, 5);
}

TEST(Sft, CountsLabelTokensInOnePass) {
  const Objective objective{config::TrainConfig{}};
  EXPECT_FALSE(objective.info().needs_sums());
  EXPECT_FALSE(objective.info().needs_reference);
  EXPECT_EQ(objective.count_terms({.label_tokens = 12, .documents = 5}), 12);
}

/// Names of metrics, one weight for each document, which is the derivative of the loss, and a loss
/// of 0 without documents.
TEST(Objective, EntriesDoWhatTheirRowsSay) {
  int entries = 0;
  for (const config::ObjectiveInfo& info : config::kObjectives) {
    if (!info.needs_sums()) continue;
    SCOPED_TRACE(info.name);
    ++entries;
    config::TrainConfig config;
    config.objective = info.objective;
    const Objective objective(config);
    const int64_t documents = 3 * info.sequences();
    const at::Tensor policy = test::normal({documents}, 1, at::kDouble) * 4,
                     lengths = at::arange(1, documents + 1, at::kDouble);
    at::Tensor reference;
    if (info.needs_reference) reference = test::normal({documents}, 2, at::kDouble) * 4;
    const auto value_at = [&](const at::Tensor& log_p) {
      return objective.evaluate({.policy = log_p, .reference = reference, .lengths = lengths});
    };
    const ObjectiveValue value = value_at(policy);
    std::set<std::string_view> names(info.metrics.begin(), info.metrics.end());
    EXPECT_EQ(names.size(), value.metrics.size());
    for (const ObjectiveMetric& metric : value.metrics) EXPECT_TRUE(names.contains(metric.name));
    EXPECT_TRUE(info.shown.metric.empty() || names.contains(info.shown.metric));
    ASSERT_EQ(value.weights.size(0), documents);
    for (int64_t i = 0; i < documents; ++i) {
      constexpr double kStep = 1e-6;
      const at::Tensor moved = policy.clone();
      moved[i] += kStep;
      EXPECT_NEAR((value_at(moved).loss_sum - value.loss_sum).item<double>() / kStep,
                  -value.weights[i].item<double>(), 1e-6);
    }
    const at::Tensor none = at::zeros({0}, at::kDouble);
    const DocumentSums of_none{
        .policy = none, .reference = info.needs_reference ? none : at::Tensor(), .lengths = none};
    EXPECT_EQ(objective.evaluate(of_none).loss_sum.item<double>(), 0);
  }
  EXPECT_GE(entries, 1);
}

/// From rows to documents and back: the gradient of the objective by way of row factors is that of
/// autograd through the sums.
TEST(Objective, FactorsOfRowsAreTheGradient) {
  const at::Tensor documents = at::tensor({0, 0, 1, 2, 2, 2, 3}, at::kLong);
  const at::Tensor losses = test::normal({7}, 1).abs(),
                   reference = test::normal({4}, 2, at::kDouble);
  const at::Tensor sums = sums_by_document(losses, documents, 4);
  EXPECT_NEAR(sums[2].item<double>(), -losses.narrow(0, 3, 3).sum().item<double>(), 1e-6);
  const ObjectiveValue value = dpo(0.5).evaluate({.policy = sums, .reference = reference});

  const at::Tensor leaf = losses.to(at::kDouble).requires_grad_();
  const at::Tensor margin =
      (-at::zeros({4}, at::kDouble).index_add(0, documents, leaf) - reference).view({2, 2});
  const at::Tensor loss = -at::log_sigmoid(0.5 * (margin.select(1, 0) - margin.select(1, 1))).sum();
  torch::autograd::backward({loss});
  EXPECT_NEAR(value.loss_sum.item<double>(), loss.item<double>(), 1e-12);
  EXPECT_TRUE(test::close(row_factors(value, documents), leaf.grad(), 1e-6));
}

TEST(Objective, LengthsAreNumbersOfLabels) {
  const at::Tensor labels = at::tensor({7, 8, 9, data::kIgnoreIndex, data::kIgnoreIndex}, at::kInt),
                   documents = at::tensor({1, 1, 2, 0, 0}, at::kLong);  // padding: document 0
  EXPECT_TRUE(at::equal(lengths_by_document(labels, documents, 4),
                        at::tensor({0.0, 2.0, 1.0, 0.0}, at::kDouble)));
}

/// Rewards of two pairs, by means over their labels, where one answer has none.
TEST(Pairs, RewardsPerTokenWithoutAReference) {
  const DocumentSums sums{.policy = at::tensor({-4.0, -6.0, -3.0, 0.0}, at::kDouble),
                          .lengths = at::tensor({4.0, 2.0, 3.0, 0.0}, at::kDouble)};
  const double gamma = 1;  // a loss may read settings
  const ObjectiveValue value =
      value_of_pairs(sums, {.beta = 2, .per_token = true}, [gamma](const at::Tensor& margins) {
        return PairLoss{.losses = gamma - margins, .slopes = -at::ones_like(margins)};
      });
  const auto numbers = numbers_of(value);
  EXPECT_EQ(numbers.at("rewards/chosen"), -2 - 2);
  EXPECT_EQ(numbers.at("rewards/rejected"), -6);
  EXPECT_EQ(numbers.at("rewards/accuracies"), 1);
  EXPECT_EQ(numbers.at("logps/chosen"), -7);
  EXPECT_EQ(numbers.at("loss"), (1 - 4) + (1 + 2));
  EXPECT_TRUE(
      test::close(value.weights, at::tensor({0.5, -1.0, 2.0 / 3, -2.0}, at::kDouble), 1e-15));
}

/// As if the pair were not there.
TEST(Pairs, WithoutLabelsAreNoTerms) {
  const auto value_of = [](std::initializer_list<double> policy,
                           std::initializer_list<double> lengths) {
    const at::Tensor log_p = at::tensor(at::ArrayRef<double>(policy), at::kDouble);
    return dpo(0.5).evaluate({.policy = log_p,
                              .reference = log_p * 0.5,
                              .lengths = at::tensor(at::ArrayRef<double>(lengths), at::kDouble)});
  };
  const ObjectiveValue with = value_of({-4, -6, 0, 0, -1, -3}, {4, 2, 0, 0, 1, 1}),
                       without = value_of({-4, -6, -1, -3}, {4, 2, 1, 1});
  EXPECT_EQ(with.loss_sum.item<double>(), without.loss_sum.item<double>());
  EXPECT_GT(with.loss_sum.item<double>(), 0);
  EXPECT_EQ(numbers_of(with), numbers_of(without));
}

/// A document without labelled rows, and none at all.
TEST(Objective, DocumentsWithoutRows) {
  const at::Tensor documents = at::tensor({1}, at::kLong);
  EXPECT_TRUE(at::equal(sums_by_document(at::ones({1}), documents, 2),
                        at::tensor({0.0, -1.0}, at::kDouble)));
  const at::Tensor none = at::empty({0}, at::kLong);
  const at::Tensor sums = sums_by_document(at::empty({0}), none, 0);
  const ObjectiveValue value = dpo(0.1).evaluate({.policy = sums, .reference = sums});
  EXPECT_EQ(value.loss_sum.item<double>(), 0);
  EXPECT_EQ(row_factors(value, none).numel(), 0);
}

}  // namespace
}  // namespace sftrun::train
