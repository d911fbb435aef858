#include "sftrun/train/objective.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "../../src/train/objectives/pairs.h"
#include "sftrun/data/example.h"
#include "sftrun/train/micro_batch_schedule.h"
#include "support/tensors.h"

namespace sftrun::train {
namespace {

using CaseJson = nlohmann::ordered_json;

Objective objective_of(const CaseJson& train) {
  CaseJson config = config::to_json(config::RunConfig{});
  config["train"].update(train);
  return Objective(config::from_json(config).train);
}
Objective dpo(double beta) {
  return objective_of({{"objective", "dpo"}, {"beta", beta}});
}

std::map<std::string, double> numbers_of(const ObjectiveValue& value) {
  std::map<std::string, double> numbers = {{"loss", value.loss_sum.item<double>()}};
  for (const ObjectiveMetric& metric : value.metrics)
    numbers[metric.name] = metric.sum.item<double>();
  return numbers;
}

/// Labelled rows of documents, as a micro-batch has them, with their log-probabilities.
struct Rows {
  model::PackedBatch batch;
  BatchCounts counts;
  std::vector<double> policy, reference;
  std::vector<int64_t> documents, kinds;
  std::vector<uint8_t> desirable;

  void add(const CaseJson& log_p, const CaseJson& of_reference, data::LabelKind kind) {
    for (size_t i = 0; i < log_p.size(); ++i) {
      policy.push_back(log_p[i]);
      reference.push_back(of_reference.empty() ? 0.0 : of_reference[i].get<double>());
      documents.push_back(counts.documents);
      kinds.push_back(static_cast<int64_t>(kind));
    }
  }
  at::Tensor losses(const std::vector<double>& log_p) const {
    return -at::tensor(log_p, at::kDouble);
  }
};

/// Where a tail begins: behind the labels that both answers of a pair have.
size_t both_have(const CaseJson& documents, size_t i, const model::LabelKinds& kinds) {
  const size_t own = documents[i]["policy"].size();
  return kinds.tails ? std::min(own, documents[i ^ 1U]["policy"].size()) : own;
}

/// The labels of a prompt come first.
Rows rows_of(const CaseJson& documents, const model::LabelKinds& kinds) {
  Rows rows;
  for (size_t i = 0; i < documents.size(); ++i) {
    const CaseJson& one = documents[i];
    const CaseJson prompt = one.value("prompt_policy", CaseJson::array()), none = CaseJson::array();
    rows.add(prompt, none, data::LabelKind::kPrompt);
    const size_t both = both_have(documents, i, kinds);
    for (size_t label = 0; label < one["policy"].size(); ++label)
      rows.add(CaseJson::array({one["policy"][label]}),
               one.contains("reference") ? CaseJson::array({one["reference"][label]}) : none,
               label < both ? data::LabelKind::kAnswer : data::LabelKind::kTail);
    const auto labels = static_cast<int64_t>(one["policy"].size());
    const bool is_desirable = one.value("desirable", false);
    rows.desirable.push_back(is_desirable ? 1 : 0);
    rows.counts.desirable += is_desirable ? 1 : 0;
    rows.counts.chosen_labels += i % 2 == 0 ? labels : 0;
    rows.counts.chosen_sequence_labels +=
        i % 2 == 0 ? labels + static_cast<int64_t>(prompt.size()) : 0;
    ++rows.counts.documents;
  }
  const auto size = static_cast<int64_t>(rows.documents.size());
  rows.batch.tokens = at::zeros({std::max<int64_t>(size, 1)}, at::kLong);
  rows.batch.labels = at::zeros({size}, at::kInt);
  rows.batch.label_documents = at::tensor(rows.documents, at::kLong);
  if (kinds.any()) rows.batch.label_kinds = at::tensor(rows.kinds, at::kLong);
  rows.batch.context.cu_seqlens.resize(documents.size() + 1);
  return rows;
}

DocumentSums sums_of(const Rows& rows, const Objective& objective, double divergence = 0) {
  const auto sum = [&](const std::vector<double>& log_p, data::LabelKind kind) {
    return sums_by_document(rows.losses(log_p), rows.batch, kind);
  };
  DocumentSums sums{.policy = sum(rows.policy, data::LabelKind::kAnswer),
                    .lengths = lengths_by_document(rows.batch)};
  const model::LabelKinds kinds = objective.label_kinds();
  const bool has_reference = objective.info().needs_reference;
  if (has_reference) sums.reference = sum(rows.reference, data::LabelKind::kAnswer);
  if (kinds.tails) {
    sums.tail_policy = sum(rows.policy, data::LabelKind::kTail);
    sums.tail_reference = sum(rows.reference, data::LabelKind::kTail);
  }
  if (kinds.prompts_of_chosen) sums.prompt_policy = sum(rows.policy, data::LabelKind::kPrompt);
  sums.is_desirable = at::tensor(rows.desirable, at::kByte).to(at::kBool);
  sums.divergence = at::full({}, divergence, at::kDouble);
  return sums;
}

CaseJson cases() {
  std::ifstream file(std::string(SFTRUN_TEST_DATA) + "/train/preference.json");
  return CaseJson::parse(file);
}

/// The gradient of each labelled row, in the order of `rows_of`.
std::vector<double> gradients_of(const CaseJson& one) {
  std::vector<double> gradients;
  for (size_t i = 0; i < one["documents"].size(); ++i) {
    if (one.contains("d_prompt_policy"))
      for (const CaseJson& of_row : one["d_prompt_policy"][i]) gradients.push_back(of_row);
    for (const CaseJson& of_row : one["d_policy"][i]) gradients.push_back(of_row);
  }
  return gradients;
}

/// scripts/fixtures/make_preference.py: TRL's own functions in fp64, gradients by autograd.
TEST(Preference, EqualsTheReference) {
  std::set<std::string> objectives;
  for (const CaseJson& one : cases()) {
    SCOPED_TRACE(one["name"]);
    const Objective objective = objective_of(one["settings"]);
    objectives.insert(std::string(objective.info().name));
    const Rows rows = rows_of(one["documents"], objective.label_kinds());
    const DocumentSums sums = sums_of(rows, objective, one.value("z", 0.0));
    const ObjectiveValue value = objective.evaluate(sums, rows.counts);
    const auto numbers = numbers_of(value);
    const double loss = one["loss_sum"], terms = one["terms"];
    EXPECT_NEAR(numbers.at("loss"), loss, 1e-10 * (1 + std::abs(loss)));
    EXPECT_EQ(objective.count_terms(rows.counts), terms);
    for (const auto& [name, sum] : one["metrics"].items()) {
      const double mean = sum.get<double>() / one["divisors"][name].get<double>();
      EXPECT_NEAR(numbers.at(name) / terms, mean, 1e-10 * (1 + std::abs(mean))) << name;
    }
    const at::Tensor expected = at::tensor(gradients_of(one), at::kDouble);
    EXPECT_TRUE(test::close(row_factors(value.weights, rows.batch).to(at::kDouble), -expected,
                            1e-6 * (1 + expected.abs().max().item<double>())));
  }
  EXPECT_EQ(objectives.size(), config::objective_names([](const config::ObjectiveInfo& info) {
                                 return info.needs_sums() && !info.reads_samples();
                               }).size());
}

/// Each term of a batch that is divided over micro-batches or ranks has the same gradient, and the
/// sums are the same.
TEST(Preference, DoesNotDependOnHowDocumentsAreDivided) {
  for (const CaseJson& one : cases()) {
    SCOPED_TRACE(one["name"]);
    const Objective objective = objective_of(one["settings"]);
    const double divergence = one.value("z", 0.0);
    const CaseJson& documents = one["documents"];
    const Rows whole = rows_of(documents, objective.label_kinds());
    const ObjectiveValue all =
        objective.evaluate(sums_of(whole, objective, divergence), whole.counts);
    std::map<std::string, double> sums;
    std::vector<at::Tensor> factors;
    const auto together = static_cast<size_t>(objective.config().sequences());
    for (size_t first = 0; first < documents.size(); first += together) {
      CaseJson part = CaseJson::array();
      for (size_t i = 0; i < together; ++i) part.push_back(documents[first + i]);
      const Rows rows = rows_of(part, objective.label_kinds());
      const ObjectiveValue value =
          objective.evaluate(sums_of(rows, objective, divergence), whole.counts);
      for (const auto& [name, sum] : numbers_of(value)) sums[name] += sum;
      factors.push_back(row_factors(value.weights, rows.batch));
    }
    for (const auto& [name, sum] : numbers_of(all))
      EXPECT_NEAR(sums.at(name), sum, 1e-9 * (1 + std::abs(sum))) << name;
    EXPECT_TRUE(test::close(at::cat(factors), row_factors(all.weights, whole.batch), 1e-6));
  }
}

CaseJson equal_documents(int64_t count) {
  CaseJson documents = CaseJson::array();
  for (int64_t i = 0; i < count; ++i)
    documents.push_back({{"policy", {-1.5 - static_cast<double>(i), -0.25}},
                         {"reference", {-1.5 - static_cast<double>(i), -0.25}},
                         {"desirable", i % 2 == 0}});
  return documents;
}

double loss_at_the_start(const CaseJson& train) {
  const Objective objective = objective_of(train);
  const Rows rows = rows_of(equal_documents(6), objective.label_kinds());
  const double sum =
      objective.evaluate(sums_of(rows, objective), rows.counts).loss_sum.item<double>();
  return sum / static_cast<double>(objective.count_terms(rows.counts));
}

/// The model is the reference model at the start, so all log-ratios are 0.
TEST(Preference, KnownLossesAtTheStart) {
  const double beta = 0.2;
  const auto dpo_with = [&](const CaseJson& loss) {
    return loss_at_the_start({{"objective", "dpo"}, {"beta", beta}, {"loss_type", loss}});
  };
  EXPECT_NEAR(dpo_with("sigmoid"), std::log(2.0), 1e-12);
  EXPECT_NEAR(dpo_with("sigmoid_norm"), std::log(2.0), 1e-12);
  EXPECT_NEAR(dpo_with("hinge"), 1, 1e-12);
  EXPECT_NEAR(dpo_with("ipo"), std::pow(1 / (2 * beta), 2), 1e-12);
  EXPECT_NEAR(dpo_with("nca_pair"), 2 * std::log(2.0), 1e-12);
  EXPECT_NEAR(dpo_with("bco_pair"), 2 * std::log(2.0), 1e-12);
  EXPECT_NEAR(dpo_with("sppo_hard"), 2 * std::pow(0.5 / beta, 2), 1e-12);
  EXPECT_NEAR(dpo_with("apo_zero"), 1, 1e-12);
  EXPECT_NEAR(dpo_with({{"sigmoid", 0.5}, {"hinge", 2}}), 0.5 * std::log(2.0) + 2, 1e-12);
  EXPECT_NEAR(loss_at_the_start({{"objective", "kto"}, {"desirable_weight", 1.5}}),
              0.5 * (1.5 + 1) / 2, 1e-12);
}

TEST(Preference, IsFiniteFarFromTheReference) {
  const at::Tensor far = at::tensor({1e5, -1e5, -1e5, 1e5}, at::kDouble);
  const ObjectiveValue value = dpo(1).evaluate(
      {.policy = far, .reference = at::zeros_like(far), .lengths = at::ones_like(far)},
      {.documents = 4});
  EXPECT_NEAR(value.loss_sum.item<double>(), 2e5, 1e-6);
  EXPECT_TRUE(at::equal(value.weights.answers, at::tensor({0.0, -0.0, 1.0, -1.0}, at::kDouble)));
}

/// Odds are infinite where a model is certain, and an answer without labels has the probability 1.
TEST(Preference, OddsOfCertainAnswersAreFinite) {
  const Objective objective = objective_of({{"objective", "orpo"}});
  const CaseJson documents = {{{"policy", {0.0}}, {"prompt_policy", {-1.0}}},
                              {{"policy", CaseJson::array()}},
                              {{"policy", {-1e-300}}},
                              {{"policy", {-800.0}}}};
  const Rows rows = rows_of(documents, objective.label_kinds());
  const ObjectiveValue value = objective.evaluate(sums_of(rows, objective), rows.counts);
  for (const auto& [name, sum] : numbers_of(value)) EXPECT_TRUE(std::isfinite(sum)) << name;
  EXPECT_TRUE(value.weights.answers.isfinite().all().item<bool>());
}

TEST(Sft, CountsLabelTokensInOnePass) {
  const Objective objective{config::TrainConfig{}};
  EXPECT_FALSE(objective.info().needs_sums());
  EXPECT_FALSE(objective.info().needs_reference);
  EXPECT_EQ(objective.count_terms({.documents = 5, .label_tokens = 12, .label_weight = 7.5}), 7.5);
}

TEST(Distill, MixesLossesOfLabelTokensInOnePass) {
  config::TrainConfig config;
  EXPECT_FALSE(Objective(config).distillation());
  config.objective = config::Objective::kDistill;
  config.kd_alpha = 0.25, config.kd_beta = 0.5, config.kd_temperature = 2;
  const Objective objective(config);
  EXPECT_FALSE(objective.info().needs_sums());
  EXPECT_EQ(objective.count_terms({.documents = 5, .label_tokens = 12, .label_weight = 12}), 12);
  ASSERT_TRUE(objective.distillation());
  EXPECT_EQ(objective.distillation()->alpha, 0.25);
  EXPECT_EQ(objective.distillation()->beta, 0.5);
  EXPECT_EQ(objective.distillation()->temperature, 2);
  // Where another stage has the head, or there is nothing, the parts of the loss are zeros.
  const model::PackedBatch nothing;
  const model::MicroBatchRun run(nothing);
  for (const ObjectiveMetric& metric : head_metrics(run, at::zeros({}, at::kDouble), objective)) {
    EXPECT_EQ(metric.sum.item<double>(), 0);
    EXPECT_TRUE(objective.info().has_metric(metric.name));
  }
  EXPECT_EQ(head_metrics(run, at::zeros({}, at::kDouble), objective).size(),
            objective.info().metrics.size());
}

/// Names of metrics, and a loss of 0 without documents.
TEST(Objective, EntriesDoWhatTheirRowsSay) {
  int entries = 0;
  for (const config::ObjectiveInfo& info : config::kObjectives) {
    if (!info.needs_sums() || info.reads_samples()) continue;  // grpo_test.cpp
    SCOPED_TRACE(info.name);
    ++entries;
    const Objective objective = objective_of({{"objective", info.name}});
    const Rows rows = rows_of(equal_documents(4), objective.label_kinds());
    const ObjectiveValue value = objective.evaluate(sums_of(rows, objective), rows.counts);
    std::set<std::string_view> names(info.metrics.begin(), info.metrics.end());
    EXPECT_EQ(names.size(), value.metrics.size());
    for (const ObjectiveMetric& metric : value.metrics) EXPECT_TRUE(names.contains(metric.name));
    EXPECT_TRUE(info.shown.metric.empty() || names.contains(info.shown.metric));
    const Rows none = rows_of(CaseJson::array(), objective.label_kinds());
    EXPECT_EQ(objective.evaluate(sums_of(none, objective), rows.counts).loss_sum.item<double>(), 0);
    EXPECT_EQ(row_factors(value.weights, none.batch).numel(), 0);
  }
  EXPECT_GE(entries, 1);
}

CaseJson head_cases() {
  std::ifstream file(std::string(SFTRUN_TEST_DATA) + "/train/heads.json");
  return CaseJson::parse(file);
}

at::Tensor scores_of(const CaseJson& scores) {
  std::vector<at::Tensor> rows;
  for (const CaseJson& row : scores)
    rows.push_back(at::tensor(row.get<std::vector<double>>(), at::kDouble));
  return at::stack(rows);
}

/// @param some of the documents of a case; empty: all
model::PackedBatch scored_batch(const CaseJson& targets) {
  model::PackedBatch batch;
  const auto count = static_cast<int64_t>(targets.size());
  size_t most = 1;
  for (const CaseJson& one : targets) most = std::max(most, one.size());
  batch.counts = at::ones({count}, at::kBool);
  batch.targets = at::full({count, static_cast<int64_t>(most)}, -1.0, at::kDouble);
  for (int64_t i = 0; i < count; ++i)
    for (size_t j = 0; j < targets[i].size(); ++j)
      batch.targets[i][static_cast<int64_t>(j)] = targets[i][j].get<double>();
  return batch;
}

/// scripts/fixtures/make_heads.py: the code of TRL, transformers and scikit-learn.
TEST(Scores, EqualTheReference) {
  std::set<std::string> objectives;
  for (const CaseJson& one : head_cases()) {
    SCOPED_TRACE(one["name"]);
    const Objective objective = objective_of(one["settings"]);
    objectives.insert(std::string(objective.info().name));
    const double terms = one["terms"];
    const at::Tensor scores = scores_of(one["scores"]);
    const ScoreValue value =
        objective.evaluate_scores(scores, scored_batch(one["targets"]), /*wants_confusion=*/true);
    EXPECT_NEAR(value.loss_sum.item<double>() / terms, one["loss"].get<double>(), 1e-12);
    EXPECT_TRUE(
        test::close(value.gradient.to(at::kDouble) / terms, scores_of(one["d_scores"]), 1e-7));
    EXPECT_EQ(one["metrics"].size(), value.metrics.size());
    for (const ObjectiveMetric& metric : value.metrics)
      EXPECT_NEAR(metric.sum.item<double>() / terms, one["metrics"][metric.name].get<double>(),
                  1e-7)  // TRL has the accuracy in fp32

          << metric.name;
    const int64_t labels = scores.size(1);
    EXPECT_EQ(value.confusion.defined(), one.contains("confusion"));
    if (!one.contains("confusion")) continue;
    EXPECT_TRUE(at::equal(value.confusion, scores_of(one["confusion"])));
    EXPECT_EQ(value.confusion.numel(), objective.confusion_size(labels));
    const at::Tensor flat = value.confusion.contiguous();
    const std::vector<double> counts(flat.const_data_ptr<double>(),
                                     flat.const_data_ptr<double>() + flat.numel());
    for (const auto& [name, number] : objective.metrics_of(counts, labels))
      EXPECT_NEAR(number, one[name].get<double>(), 1e-12) << name;
  }
  EXPECT_EQ(objectives.size(), config::objective_names(&config::ObjectiveInfo::has_scores).size());
}

/// Of very many classes the matrix would take more than the model: counts of each class give the same means.
TEST(Scores, OfManyClassesAreCountedByClass) {
  constexpr int64_t kClasses = 1200, kDocuments = 40;
  config::TrainConfig config;
  config.objective = config::Objective::kClassify;
  config.problem_type = config::ProblemType::kSingleLabel;
  const Objective objective(config);
  const at::Tensor numbers = at::arange(kDocuments, at::kLong), actual = numbers.remainder(6),
                   predicted = (numbers * 7).remainder(5);
  const auto f1_of = [&](int64_t classes) {
    const at::Tensor scores = at::one_hot(predicted, classes).to(at::kFloat);
    model::PackedBatch batch;
    batch.counts = at::ones({kDocuments}, at::kBool);
    batch.targets = actual.to(at::kDouble).unsqueeze(1);
    const at::Tensor counted =
        objective.evaluate_scores(scores, batch, true).confusion.contiguous();
    EXPECT_EQ(counted.numel(), objective.confusion_size(classes));
    return objective.metrics_of(
        {counted.const_data_ptr<double>(), counted.const_data_ptr<double>() + counted.numel()},
        classes);
  };
  EXPECT_EQ(objective.confusion_size(kClasses), 4 * kClasses);
  const auto few = f1_of(6), many = f1_of(kClasses);
  ASSERT_EQ(few.size(), many.size());
  for (size_t i = 0; i < few.size(); ++i) EXPECT_NEAR(few[i].second, many[i].second, 1e-12);
}

/// Documents that lost their labels, and micro-batches without documents.
TEST(Scores, LostDocumentsAreNoTerms) {
  for (const CaseJson& one : head_cases()) {
    SCOPED_TRACE(one["name"]);
    const Objective objective = objective_of(one["settings"]);
    const int64_t lost = objective.config().sequences();
    const at::Tensor scores = scores_of(one["scores"]);
    model::PackedBatch batch = scored_batch(one["targets"]), rest = batch;
    batch.counts.narrow(0, 0, lost).fill_(false);
    rest.counts = batch.counts.slice(0, lost);
    rest.targets = batch.targets.slice(0, lost);
    const ScoreValue with = objective.evaluate_scores(scores, batch, true),
                     without = objective.evaluate_scores(scores.slice(0, lost), rest, true);
    EXPECT_NEAR(with.loss_sum.item<double>(), without.loss_sum.item<double>(), 1e-12);
    EXPECT_TRUE(at::equal(with.gradient.slice(0, lost), without.gradient));
    EXPECT_EQ(with.gradient.narrow(0, 0, lost).abs().sum().item<double>(), 0);
    if (with.confusion.defined()) {
      EXPECT_TRUE(at::equal(with.confusion, without.confusion));
    }
    for (size_t i = 0; i < with.metrics.size(); ++i)
      EXPECT_NEAR(with.metrics[i].sum.item<double>(), without.metrics[i].sum.item<double>(), 1e-12);
    const ScoreValue none =
        objective.evaluate_scores(at::zeros({0, scores.size(1)}), model::PackedBatch{}, true);
    EXPECT_EQ(none.loss_sum.item<double>(), 0);
    ASSERT_EQ(none.metrics.size(), with.metrics.size());
    for (size_t i = 0; i < with.metrics.size(); ++i) {
      EXPECT_EQ(none.metrics[i].name, with.metrics[i].name);
      EXPECT_TRUE(objective.info().has_metric(none.metrics[i].name));
    }
  }
}

TEST(Objective, LengthsAreNumbersOfLabelsOfAnswers) {
  model::PackedBatch batch;
  batch.tokens = at::zeros({6}, at::kLong);
  batch.context.cu_seqlens = {0, 1, 3, 4, 6};
  batch.labels = at::tensor({7, 8, 9, data::kIgnoreIndex, data::kIgnoreIndex}, at::kInt);
  batch.label_documents = at::tensor({1, 1, 2, 0, 0}, at::kLong);  // padding: document 0
  EXPECT_TRUE(at::equal(lengths_by_document(batch), at::tensor({0.0, 2.0, 1.0, 0.0}, at::kDouble)));
  const auto kind = [](data::LabelKind kind) { return static_cast<int64_t>(kind); };
  batch.label_kinds = at::tensor({kind(data::LabelKind::kPrompt), kind(data::LabelKind::kTail),
                                  int64_t{0}, int64_t{0}, int64_t{0}},
                                 at::kLong);
  EXPECT_TRUE(at::equal(lengths_by_document(batch), at::tensor({0.0, 1.0, 1.0, 0.0}, at::kDouble)));
}

/// As if the pair were not there.
TEST(Pairs, WithoutLabelsAreNoTerms) {
  const auto value_of = [](std::initializer_list<double> policy,
                           std::initializer_list<double> lengths) {
    const at::Tensor log_p = at::tensor(at::ArrayRef<double>(policy), at::kDouble);
    return dpo(0.5).evaluate({.policy = log_p,
                              .reference = log_p * 0.5,
                              .lengths = at::tensor(at::ArrayRef<double>(lengths), at::kDouble)},
                             {.documents = 4});
  };
  const ObjectiveValue with = value_of({-4, -6, 0, 0, -1, -3}, {4, 2, 0, 0, 1, 1}),
                       without = value_of({-4, -6, -1, -3}, {4, 2, 1, 1});
  EXPECT_EQ(with.loss_sum.item<double>(), without.loss_sum.item<double>());
  EXPECT_GT(with.loss_sum.item<double>(), 0);
  EXPECT_EQ(numbers_of(with), numbers_of(without));
}

}  // namespace
}  // namespace sftrun::train
