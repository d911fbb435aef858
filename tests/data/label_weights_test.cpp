#include "sftrun/data/label_weights.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "support/expect_error.h"

namespace sftrun::data {
namespace {

using Spans = std::vector<tokenizer::ByteSpan>;

LabelWeights rules_of(const std::vector<std::pair<const char*, double>>& weights) {
  nlohmann::ordered_json configured;
  for (const auto& [pattern, weight] : weights) configured[pattern] = weight;
  return LabelWeights(configured);
}

/// One token a byte.
Spans tokens_of(std::string_view text) {
  Spans spans;
  for (uint32_t i = 0; i < text.size(); ++i) spans.push_back({i, i + 1});
  return spans;
}

std::vector<float> weights_of(const LabelWeights& rules, std::string_view text,
                              const std::vector<WeightedSpan>& answers,
                              std::vector<uint8_t>& mask) {
  std::vector<WeightedSpan> matches;
  for (const WeightedSpan& answer : answers) rules.add_matches(text, answer.span, matches);
  return weigh_labels(tokens_of(text), answers, matches, mask);
}

TEST(LabelWeights, TheLastMatchTimesTheAnswersWeight) {
  const LabelWeights rules = rules_of({{"b+", 2}, {"bc", 0.5}});
  std::vector<uint8_t> mask = {0, 1, 1, 1, 1, 1, 1, 0};
  EXPECT_EQ(weights_of(rules, "babbcabc", {{{1, 5}, 3}, {{5, 7}, 1}}, mask),
            (std::vector<float>{1, 3, 6, 1.5, 1.5, 1, 2, 1}));
  EXPECT_EQ(mask, (std::vector<uint8_t>{0, 1, 1, 1, 1, 1, 1, 0}));
}

TEST(LabelWeights, MatchesEndWithTheAnswer) {
  const LabelWeights rules = rules_of({{"^a|a$", 2}, {"(?<=b)a", 4}});
  std::vector<uint8_t> mask(5, 1);
  // Neither `^` nor a look-behind sees the text around an answer.
  EXPECT_EQ(weights_of(rules, "baaab", {{{1, 4}, 1}}, mask), (std::vector<float>{1, 2, 1, 2, 1}));
}

TEST(LabelWeights, ZeroIsNoLabel) {
  const LabelWeights rules = rules_of({{"x.*?y", 0}});
  std::vector<uint8_t> mask(6, 1);
  EXPECT_EQ(weights_of(rules, "axbyyc", {{{0, 6}, 1}}, mask),
            (std::vector<float>{1, 0, 0, 0, 1, 1}));
  EXPECT_EQ(mask, (std::vector<uint8_t>{1, 0, 0, 0, 1, 1}));
}

TEST(LabelWeights, AllOneIsNoColumn) {
  std::vector<uint8_t> mask(3, 1);
  EXPECT_TRUE(weights_of(rules_of({{"z", 2}}), "abc", {{{0, 3}, 1}}, mask).empty());
  EXPECT_TRUE(weights_of({}, "abc", {}, mask).empty());
}

TEST(LabelWeights, TokensWithoutBytesBelongToWhatBeginsThere) {
  const LabelWeights rules = rules_of({{"b", 2}});
  std::vector<WeightedSpan> matches;
  rules.add_matches("ab", {0, 2}, matches);
  std::vector<uint8_t> mask = {1, 1, 1};
  EXPECT_EQ(weigh_labels(Spans{{0, 1}, {1, 1}, {1, 2}}, {}, matches, mask),
            (std::vector<float>{1, 2, 2}));
}

TEST(LabelWeights, ExpressionsThatNeverEndAreNamed) {
  const LabelWeights rules = rules_of({{"(a|a)*\\d", 2}});
  const std::string text(60, 'a');
  std::vector<WeightedSpan> matches;
  test::expect_error<ConfigError>(
      [&] {
        rules.add_matches(text, {0, static_cast<uint32_t>(text.size())}, matches);
      },
      {"takes too long", "data.label_weights"});
}

}  // namespace
}  // namespace sftrun::data
