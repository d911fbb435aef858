#include "sftrun/train/embeddings.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "sftrun/config/run_config.h"
#include "support/tensors.h"

namespace sftrun::train {
namespace {

using EmbedCase = nlohmann::ordered_json;

std::vector<EmbedCase> embed_cases() {
  std::ifstream file(std::string(SFTRUN_TEST_DATA) + "/train/embed.json");
  return EmbedCase::parse(file)["cases"].get<std::vector<EmbedCase>>();
}

config::TrainConfig embed_settings(const EmbedCase& settings) {
  EmbedCase config = config::to_json(config::RunConfig{});
  config["train"].update(settings);
  return config::from_json(config).train;
}

at::Tensor matrix_of(const EmbedCase& rows) {
  std::vector<double> values;
  for (const EmbedCase& row : rows)
    for (const EmbedCase& value : row) values.push_back(value.get<double>());
  return at::tensor(values, at::kDouble).view({std::ssize(rows), -1});
}

EmbeddedBatch contrast_of(const EmbedCase& one, bool with_gradients) {
  return contrast(matrix_of(one["embeddings"]),
                  at::tensor(one["texts"].get<std::vector<int64_t>>(), at::kLong),
                  embed_settings(one["settings"]), with_gradients);
}

/// Texts of one token each.
data::ExampleStore store_of(const std::vector<int64_t>& texts) {
  std::vector<data::Example> examples;
  for (const int64_t text : texts) {
    data::Example example{.tokens = {static_cast<int32_t>(text)}};
    example.labels = {0};
    examples.push_back(std::move(example));
  }
  return data::ExampleStore::in_memory(examples);
}

TEST(Embeddings, NothingIsToldApartWhereAllTextsFit) {
  struct Case {
    std::vector<int64_t> texts;
    int64_t sequences;
    bool is_idle;
  };
  for (const Case& one : {Case{{1, 9, 2, 9, 3, 9}, 2, true}, Case{{1, 7, 1, 8, 1, 9}, 2, true},
                          Case{{1, 9, 2, 9, 3, 8}, 2, false}, Case{{1, 9, 9, 2, 9, 9}, 3, true},
                          Case{{1, 9, 5, 2, 9, 9}, 3, false}, Case{{1, 7, 7, 1, 8, 8}, 3, false},
                          Case{{1, 9}, 2, false}}) {
    SCOPED_TRACE(::testing::PrintToString(one.texts));
    EXPECT_EQ(tells_nothing_apart(at::tensor(one.texts, at::kLong), one.sequences), one.is_idle);
    EXPECT_EQ(tells_nothing_apart(store_of(one.texts), one.sequences), one.is_idle);
    config::TrainConfig settings = embed_settings(EmbedCase::object());
    settings.objective = config::Objective::kEmbed;
    settings.negatives = one.sequences - 2;
    const at::Tensor rows = at::arange(std::ssize(one.texts) * 3, at::kDouble).view({-1, 3}).cos();
    const at::Tensor losses =
        contrast(rows, at::tensor(one.texts, at::kLong), settings, false).losses;
    const bool is_zero = losses.abs().sum().item<double>() == 0;
    EXPECT_EQ(is_zero, one.is_idle || losses.numel() == 1);
  }
}

TEST(Embeddings, EqualTheReference) {
  const std::vector<EmbedCase> cases = embed_cases();
  ASSERT_GE(cases.size(), 9U);
  for (const EmbedCase& one : cases) {
    SCOPED_TRACE(one["name"]);
    const EmbeddedBatch batch = contrast_of(one, /*with_gradients=*/true);
    EXPECT_NEAR(batch.losses.mean().item<double>(), one["loss"], 1e-12);
    ASSERT_EQ(batch.metric_names, (std::vector<std::string>{"accuracy", "mrr"}));
    EXPECT_NEAR(batch.metrics[0].mean().item<double>(), one["accuracy"], 1e-12);
    EXPECT_NEAR(batch.metrics[1].mean().item<double>(), one["mrr"], 1e-12);
    const at::Tensor wanted = matrix_of(one["d_embeddings"]) * batch.losses.numel();
    EXPECT_LT((batch.gradients.to(at::kDouble) - wanted).abs().max().item<double>(), 2e-6);
    const EmbeddedBatch alone = contrast_of(one, /*with_gradients=*/false);
    EXPECT_FALSE(alone.gradients.defined());
    EXPECT_TRUE(alone.losses.equal(batch.losses));
  }
}

TEST(Embeddings, TextsThatAreZeroHaveFiniteGradients) {
  EmbedCase one = embed_cases().front();
  one["embeddings"][1] = EmbedCase::array({0, 0, 0, 0, 0, 0});
  const EmbeddedBatch batch = contrast_of(one, /*with_gradients=*/true);
  EXPECT_TRUE(batch.losses.isfinite().all().item<bool>());
  EXPECT_TRUE(batch.gradients.isfinite().all().item<bool>());
}

TEST(Embeddings, MicroBatchesShareTheSums) {
  const EmbedCase one = embed_cases()[1];  // four texts in each of four examples
  const EmbeddedBatch batch = contrast_of(one, /*with_gradients=*/false);
  double loss = 0, accuracy = 0;
  for (const std::vector<int64_t>& keys :
       {std::vector<int64_t>{0, 1, 2, 3}, {8, 9, 10, 11, 4, 5, 6, 7}, {}, {12, 13, 14, 15}}) {
    const ScoreValue value = share_of(batch, keys, 4);
    loss += value.loss_sum.item<double>();
    accuracy += value.metrics.at(0).sum.item<double>();
  }
  EXPECT_NEAR(loss, batch.losses.sum().item<double>(), 1e-12);
  EXPECT_NEAR(accuracy, batch.metrics[0].sum().item<double>(), 1e-12);
}

TEST(Embeddings, EqualTextsHaveEqualNumbers) {
  std::vector<data::Example> examples;
  for (const std::vector<int32_t>& tokens :
       std::vector<std::vector<int32_t>>{{1, 2}, {3}, {1, 2}, {2, 1}}) {
    data::Example example{.tokens = tokens, .targets = {0}};
    example.labels.assign(tokens.size(), data::kIgnoreIndex);
    examples.push_back(example);
  }
  const at::Tensor numbers =
      text_numbers(data::ExampleStore::in_memory(examples), {{0, 1}, {2}, {3}});
  ASSERT_EQ(numbers.numel(), 4);
  const auto number = [&](int64_t i) { return numbers[i].item<int64_t>(); };
  EXPECT_EQ(number(0), number(2));
  EXPECT_EQ((std::set<int64_t>{number(0), number(1), number(3)}).size(), 3U);
}

}  // namespace
}  // namespace sftrun::train
