#include "evaluated_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "sftrun/model/generate.h"
#include "support/reference.h"
#include "support/test_data.h"
#include "two_ranks.h"

namespace sftrun::engine {
namespace {

constexpr double kTolerance = 1e-3;  // relative, of sums in fp32

LoadedModel tiny_model() {
  return load_model({.model = test::kModels / "tied-gqa"}, {.device = "cpu", .dtype = "fp32"});
}

test::Reference tiny_reference() {
  return test::read_reference(test::kModels / "tied-gqa");
}

/// What the reference's logits give for one example.
LabelSums sums_of_logits(const data::Example& example, const at::Tensor& logits) {
  const at::Tensor log_p = at::log_softmax(logits.view({-1, logits.size(-1)}).to(at::kDouble), -1);
  LabelSums sums;
  for (size_t i = 0; i < example.labels.size(); ++i) {
    const int32_t label = example.labels[i];
    if (label == data::kIgnoreIndex) continue;
    const at::Tensor row = log_p[static_cast<int64_t>(i)];
    const bool is_right = row.argmax().item<int64_t>() == label;
    sums += {.loss = -row[label].item<double>(),
             .correct = is_right ? 1.0 : 0.0,
             .weight = 1,
             .labels = 1};
  }
  return sums;
}

data::Dataset dataset_of(const std::vector<data::Example>& examples,
                         const std::vector<std::pair<int64_t, int64_t>>& parts) {
  std::vector<data::DatasetPart> named;
  for (const auto& [begin, end] : parts) {
    data::DatasetPart& part = named.emplace_back();
    part.begin = begin;
    part.end = end;
  }
  return {data::ExampleStore::in_memory(examples), std::move(named), {}, "v"};
}

void expect_close(const LabelSums& found, const LabelSums& wanted) {
  EXPECT_NEAR(found.loss, wanted.loss, kTolerance * wanted.loss);
  EXPECT_EQ(found.labels, wanted.labels);
  EXPECT_EQ(found.correct, wanted.correct);
}

TEST(LabelSums, AreThoseOfTheReferencesLogitsForEachPart) {
  const test::Reference reference = tiny_reference();
  ASSERT_EQ(reference.examples.size(), 2U);
  std::vector<LabelSums> wanted;
  for (size_t i = 0; i < 2; ++i)
    wanted.push_back(sums_of_logits(reference.examples[i], reference.logits[i]));
  Rank rank;
  const std::vector<LabelSums> sums =
      label_sums(tiny_model(), dataset_of(reference.examples, {{0, 1}, {1, 2}, {2, 2}, {0, 2}}),
                 rank, "parts", [] { return false; });
  ASSERT_EQ(sums.size(), 4U);
  expect_close(sums[0], wanted[0]);
  expect_close(sums[1], wanted[1]);
  EXPECT_EQ(sums[2].labels, 0) << "an empty part";
  expect_close(sums[3], LabelSums(wanted[0]) += wanted[1]);
}

TEST(LabelSums, CountTheLabelsThatAreTheLikeliestTokens) {
  const LoadedModel model = tiny_model();
  data::Example example;
  example.tokens = {5, 6, 7};
  example.labels = {data::kIgnoreIndex, data::kIgnoreIndex};
  const auto greedy = model::generate(*model.decoder, {example.tokens}, {0}, {.max_new_tokens = 8});
  for (const int32_t token : greedy[0].tokens) {
    example.tokens.push_back(token);
    example.labels.push_back(token);
  }
  example.labels.push_back(data::kIgnoreIndex);
  example.label_tokens = 8;
  Rank rank;
  const LabelSums sums =
      label_sums(model, dataset_of({example}, {{0, 1}}), rank, "greedy", [] { return false; })[0];
  EXPECT_EQ(sums.labels, 8);
  EXPECT_EQ(sums.correct, 8);
}

TEST(LabelSums, OfTwoRanksAreThoseOfOne) {
  // A part has one pass or two, so that one rank has one more than the other.
  const data::Example one = tiny_reference().examples[0];
  const auto num_of_pass = static_cast<int64_t>(4096 / one.tokens.size());
  const std::vector<data::Example> examples(static_cast<size_t>(3 * num_of_pass / 2), one);
  const auto count = static_cast<int64_t>(examples.size());
  const data::Dataset dataset = dataset_of(examples, {{0, 3}, {3, count}});
  const auto never = [] { return false; };
  const std::vector<LabelSums> wanted = [&] {
    Rank alone;
    return label_sums(tiny_model(), dataset, alone, "alone", never);
  }();
  TwoRanks ranks;
  std::array<std::vector<LabelSums>, 2> found;
  ranks.run([&](Rank& rank) {
    found[static_cast<size_t>(rank.env().rank)] =
        label_sums(tiny_model(), dataset, rank, "together", never);
    return 0;
  });
  for (const std::vector<LabelSums>& of_rank : found) {
    ASSERT_EQ(of_rank.size(), 2U);
    for (size_t i = 0; i < 2; ++i) expect_close(of_rank[i], wanted[i]);
  }
}

TEST(LabelSums, AStopLeavesOutTheRest) {
  Rank rank;
  int num_asked = 0;
  const std::vector<LabelSums> sums =
      label_sums(tiny_model(), dataset_of(tiny_reference().examples, {{0, 1}, {1, 2}}), rank,
                 "stopped", [&] { return ++num_asked > 1; });
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_GT(sums[0].labels, 0);
  EXPECT_EQ(sums[1].labels, 0);
}

}  // namespace
}  // namespace sftrun::engine
