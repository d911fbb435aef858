#include "../../src/model/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/core/rng.h"
#include "support/test_data.h"

namespace sftrun::model {
namespace {

SamplingOptions options_of(const nlohmann::json& settings) {
  SamplingOptions options;
  options.temperature = settings.value("temperature", 1.0);
  options.top_p = settings.value("top_p", 1.0);
  options.min_p = settings.value("min_p", 0.0);
  options.repetition_penalty = settings.value("repetition_penalty", 1.0);
  if (settings.contains("top_k")) options.top_k = settings["top_k"].get<int64_t>();
  return options;
}

TEST(SamplingFilters, LeaveTheProbabilitiesThatTransformersLeaves) {
  const auto fixture = nlohmann::json::parse(read_text_file(test::kData / "model/sampling.json"));
  ASSERT_EQ(fixture["cases"].size(), 11U);
  for (const nlohmann::json& expected : fixture["cases"]) {
    SCOPED_TRACE(expected["settings"].dump());
    const SamplingOptions options = options_of(expected["settings"]);
    auto logits = expected["logits"].get<std::vector<float>>();
    penalize_repetition(logits, expected["prompt"].get<std::vector<int32_t>>(),
                        expected["generated"].get<std::vector<int32_t>>(),
                        options.repetition_penalty);
    const Candidates left = candidates(logits, options);
    std::vector<double> probabilities(logits.size());
    for (size_t i = 0; i < left.tokens.size(); ++i)
      probabilities[static_cast<size_t>(left.tokens[i])] = left.weights[i] / left.total;
    for (size_t token = 0; token < logits.size(); ++token) {
      const double theirs = expected["probabilities"][token].get<double>();
      EXPECT_EQ(probabilities[token] > 0, theirs > 0) << token;
      EXPECT_NEAR(probabilities[token], theirs, 1e-6) << token;
    }
  }
}

TEST(SamplingFilters, APenaltyCountsATokenOnce) {
  std::vector<float> logits = {2, -2, 3, 4};
  penalize_repetition(logits, std::vector<int32_t>{0, 1, 0}, std::vector<int32_t>{1, 0, 3, 9}, 2);
  EXPECT_EQ(logits, (std::vector<float>{1, -4, 3, 2}));
}

TEST(SamplingFilters, DrawsFollowTheCandidates) {
  const std::vector<float> logits = {0, 1, 2, 3, -4};
  SamplingOptions options;
  options.temperature = 1;
  options.min_p = 0.1;  // leaves 1, 2 and 3
  std::map<int32_t, int> counts;
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i)
    ++counts[sample_token(logits, options, {.position = static_cast<uint64_t>(i)}).token];
  const Candidates left = candidates(logits, options);
  ASSERT_EQ(left.tokens, (std::vector<int32_t>{1, 2, 3}));
  ASSERT_EQ(counts.size(), 3U);
  for (size_t i = 0; i < left.tokens.size(); ++i)
    EXPECT_NEAR(counts[left.tokens[i]] / double{kDraws}, left.weights[i] / left.total, 0.02);
}

TEST(SamplingFilters, ADrawKnowsItsLogProbability) {
  const std::vector<float> logits = {0, 1, 2, 3, -4};
  SamplingOptions options;
  options.temperature = 0.5;
  options.top_k = 3;
  const Candidates left = candidates(logits, options);
  std::map<int32_t, double> expected;
  for (size_t i = 0; i < left.tokens.size(); ++i)
    expected[left.tokens[i]] = std::log(left.weights[i] / left.total);
  std::map<int32_t, int> counts;
  for (uint64_t i = 0; i < 500; ++i) {
    const DrawnToken drawn = sample_token(logits, options, {.position = i});
    ++counts[drawn.token];
    EXPECT_EQ(drawn.logprob, expected.at(drawn.token));
  }
  EXPECT_EQ(counts.size(), 3U);
  options.temperature = 0;
  EXPECT_EQ(sample_token(logits, options, {}).logprob, 0);
}

TEST(SamplingFilters, OtherPlacesHaveOtherRandomNumbers) {
  const std::vector<float> logits(1000, 0);
  SamplingOptions options;
  options.temperature = 1;
  options.seed = 7;
  std::map<int32_t, int> counts;
  for (uint32_t place = 0; place < 30; ++place) {
    ++counts[sample_token(logits, options, {.stream = 1 + place}).token];
    ++counts[sample_token(logits, options, {.draw = 1 + place}).token];
    ++counts[sample_token(logits, options, {.position = 1 + place}).token];
  }
  EXPECT_GT(counts.size(), 75U) << "of 90 draws of 1000 equal tokens";
  // The numbers of the first answer are those of RandomStream.
  RandomStream random(7, uint64_t{3} << 32 | 5);
  EXPECT_EQ(sample_token(logits, options, {.stream = 3, .position = 5}).token,
            static_cast<int32_t>(random.next_unit() * 1000));
}

}  // namespace
}  // namespace sftrun::model
