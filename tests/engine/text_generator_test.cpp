#include "text_generator.h"

#include <gtest/gtest.h>

#include "session.h"
#include "support/test_data.h"

namespace sftrun::engine {
namespace {

class TextGeneratorTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 12;

  /// Answers to a prompt, each with its own random numbers.
  std::vector<Answer> answers(const std::vector<std::string>& stops, size_t count = 1,
                              size_t batch_size = 1, double temperature = 0) {
    const TextGenerator generator(model_.text,
                                  {.max_new_tokens = kTokens, .temperature = temperature}, stops);
    std::vector<Answer> found(count);
    size_t next = 0;
    generator.run(
        *model_.decoder, batch_size,
        {.next_prompt = [&]() -> std::optional<model::Prompt> {
           if (next == count) return std::nullopt;
           const size_t index = next++;
           return model::Prompt{index, prompt_, index};
         },
         .on_answer = [&](size_t index, Answer&& answer) { found.at(index) = std::move(answer); },
         .on_text = on_text_});
    return found;
  }

  LoadedModel model_ = [] {
    LoadedModel model =
        load_model({.model = test::kModels / "tied-gqa"}, {.device = "cpu", .dtype = "fp32"});
    model.text.stop_ids.clear();
    return model;
  }();
  const std::vector<int32_t> prompt_ = model_.text.tokenizer->encode("Hello you", true);
  std::function<void(std::string_view)> on_text_;
};

TEST_F(TextGeneratorTest, AnAnswerHasAllItsTokensIfNothingStopsIt) {
  const Answer answer = answers({})[0];
  EXPECT_EQ(answer.num_tokens, static_cast<size_t>(kTokens));
  EXPECT_FALSE(answer.stopped);
  EXPECT_STREQ(answer.finish_reason(), "length");
  const auto generated =
      model::generate(*model_.decoder, {prompt_}, {0}, {.max_new_tokens = kTokens});
  EXPECT_EQ(answer.text, model_.text.tokenizer->decode(generated[0].tokens, true));
}

TEST_F(TextGeneratorTest, AnAnswerEndsBeforeItsFirstStopText) {
  const std::string whole = answers({})[0].text;
  ASSERT_GT(whole.size(), 4U);
  const std::string stop = whole.substr(whole.size() / 2, 2);
  const Answer answer = answers({"never in the text", stop})[0];
  EXPECT_EQ(answer.text, whole.substr(0, whole.find(stop)));
  EXPECT_TRUE(answer.stopped);
  EXPECT_STREQ(answer.finish_reason(), "stop");
  EXPECT_LT(answer.num_tokens, static_cast<size_t>(kTokens));
  EXPECT_EQ(answers({"never in the text"})[0].text, whole);
}

TEST_F(TextGeneratorTest, AnAnswerEndsAtAStopTokenWithoutIt) {
  const auto generated =
      model::generate(*model_.decoder, {prompt_}, {0}, {.max_new_tokens = kTokens});
  const std::vector<int32_t>& tokens = generated[0].tokens;
  model_.text.stop_ids = {tokens[3]};
  const auto end = std::find(tokens.begin(), tokens.end(), tokens[3]);
  const Answer answer = answers({})[0];
  EXPECT_TRUE(answer.stopped);
  EXPECT_EQ(answer.num_tokens, static_cast<size_t>(end - tokens.begin()));
}

TEST_F(TextGeneratorTest, TheTextThatIsSettledGrowsToTheAnswer) {
  std::vector<std::string> settled;
  on_text_ = [&](std::string_view text) { settled.emplace_back(text); };
  const Answer answer = answers({})[0];
  ASSERT_EQ(settled.size(), static_cast<size_t>(kTokens));
  std::string before;
  for (const std::string& text : settled) {
    EXPECT_TRUE(text.starts_with(before)) << text;
    before = text;
  }
  EXPECT_TRUE(answer.text.starts_with(before));
}

TEST_F(TextGeneratorTest, AnswersDoNotDependOnThoseBesideThem) {
  const auto texts = [](const std::vector<Answer>& found) {
    std::vector<std::string> list;
    for (const Answer& answer : found) list.push_back(answer.text);
    return list;
  };
  const std::vector<std::string> alone = texts(answers({}, 3, 1, 1.0));
  EXPECT_EQ(texts(answers({}, 3, 3, 1.0)), alone);
  EXPECT_NE(alone[0], alone[1]) << "each has its own random numbers";
}

TEST(SamplingOfARequest, WhatIsNotGivenChangesNothing) {
  const model::SamplingOptions none = sampling_options({.max_new_tokens = 5});
  EXPECT_EQ(none.max_new_tokens, 5);
  EXPECT_EQ(none.temperature, 0);
  EXPECT_EQ(none.top_p, 1);
  EXPECT_EQ(none.top_k, std::nullopt);
  EXPECT_EQ(none.min_p, 0);
  EXPECT_EQ(none.repetition_penalty, 1);
  EXPECT_EQ(none.seed, 0U);
  const model::SamplingOptions all = sampling_options({.temperature = 0.5,
                                                       .top_p = 0.9,
                                                       .top_k = 7,
                                                       .min_p = 0.1,
                                                       .repetition_penalty = 1.2,
                                                       .seed = 3});
  EXPECT_EQ(all.temperature, 0.5);
  EXPECT_EQ(all.top_p, 0.9);
  EXPECT_EQ(all.top_k, 7);
  EXPECT_EQ(all.min_p, 0.1);
  EXPECT_EQ(all.repetition_penalty, 1.2);
  EXPECT_EQ(all.seed, 3U);
}

}  // namespace
}  // namespace sftrun::engine
