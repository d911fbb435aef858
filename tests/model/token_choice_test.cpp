#include "../../src/model/token_choice.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "sftrun/core/error.h"

namespace sftrun::model {
namespace {

CachedSequence after_token(int32_t token, double repetition_penalty) {
  auto options = std::make_shared<SamplingOptions>();
  options->repetition_penalty = repetition_penalty;
  return {.request = {.prompt = {.tokens = {token}}, .options = options}};
}

TEST(TokenChoice, FollowsTheOptionsOfEachSequence) {
  std::vector<CachedSequence> sequences = {after_token(1, 1), after_token(1, 10)};
  sequences[0].request.num_logprobs = 2;
  const at::Tensor logits = at::tensor({0.F, 3.F, 2.F}).repeat({2, 1});
  const at::Tensor before = logits.clone();
  Choices choices;
  choose_tokens(logits, sequences, {1, 0}, choices);
  EXPECT_EQ(choices.tokens, (std::vector<int32_t>{2, 1})) << "the first row is sequence 1";
  EXPECT_TRUE(at::equal(logits, before)) << "a penalty changes a copy";
  EXPECT_FALSE(choices.logprobs[0].has_value());
  ASSERT_TRUE(choices.logprobs[1].has_value());
  EXPECT_NEAR(choices.logprobs[1]->logprob, 3 - std::log(1 + std::exp(3) + std::exp(2)), 1e-6);
  EXPECT_EQ(choices.logprobs[1]->top[1].token, 2);
}

TEST(TokenChoice, RefusesLogitsThatAreNotFinite) {
  for (const float broken :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Choices choices;
    EXPECT_THROW(
        choose_tokens(at::tensor({0.F, broken}).view({1, 2}), {after_token(0, 1)}, {0}, choices),
        NotFiniteError);
  }
}

}  // namespace
}  // namespace sftrun::model
