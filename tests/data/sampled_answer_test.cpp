#include <gtest/gtest.h>

#include <algorithm>

#include "../../src/data/fit.h"
#include "sftrun/core/error.h"
#include "sftrun/data/sequence.h"
#include "support/expect_error.h"
#include "toy_model.h"

namespace sftrun::data {
namespace {

Sequence sampled_of(const Json& record) {
  const TextModel model = test::toy_model(test::kChatMl);
  const RecordFormat format =
      record.contains("prompt_ids")
          ? RecordFormat::kSampled
          : detect_format(record, "a.jsonl:1", config::Objective::kGrpo).format;
  const SequenceBuilder builder(format, model, {.form = config::ExampleForm::kSampled});
  return builder.build(record, "a.jsonl:1").at(0);
}

Json of_ids() {
  return {{"prompt_ids", {5, 6}}, {"completion_ids", {7, 8, 9}}, {"reward", 0.5}};
}

TEST(SampledAnswers, IdsAreTakenAsTheyAre) {
  Json record = of_ids();
  record.update({{"logprobs", {-0.5, nullptr, -2}},
                 {"sampling_logprobs", {-0.25, -1, 0}},
                 {"completion_mask", {1, 0, 1}},
                 {"finish_reason", "length"}});
  const Sequence sequence = sampled_of(record);
  EXPECT_EQ(sequence.ids, (std::vector<tokenizer::TokenId>{5, 6, 7, 8, 9}));
  EXPECT_EQ(sequence.mask, (std::vector<uint8_t>{0, 0, 1, 0, 1}));
  EXPECT_EQ(sequence.spans.back().end, sequence.text.size());
  const Example example = to_example(sequence, 100, 0);
  EXPECT_EQ(example.label_tokens, 2);
  EXPECT_EQ(example.values.of(LabelColumn::kOldLogp), (std::vector<float>{-0.5F, -2}));
  EXPECT_EQ(example.values.of(LabelColumn::kSampledLogp), (std::vector<float>{-0.25F, 0}));
  EXPECT_EQ(example.score, 0.5);
  EXPECT_EQ(example.score_kind, ScoreKind::kReward);
  EXPECT_TRUE(example.is_cut_short);
  EXPECT_NE(example.group, 0U);
}

TEST(SampledAnswers, TheSamePromptIsAGroupUnlessNamed) {
  Json a = of_ids(), b = of_ids();
  b["completion_ids"] = {9};
  EXPECT_EQ(sampled_of(a).group, sampled_of(b).group);
  b["prompt_ids"] = {5};
  EXPECT_NE(sampled_of(a).group, sampled_of(b).group);
  a["group"] = b["group"] = 3;
  EXPECT_EQ(sampled_of(a).group, sampled_of(b).group);
  b["group"] = "3";
  EXPECT_NE(sampled_of(a).group, sampled_of(b).group);
}

TEST(SampledAnswers, TextsAreTokenisedBehindTheirPrompt) {
  const Sequence text = sampled_of({{"prompt", "ab"}, {"completion", "cd"}, {"advantage", -1}});
  EXPECT_EQ(text.score_kind, ScoreKind::kAdvantage);
  EXPECT_EQ(text.score, -1);
  EXPECT_EQ(std::count(text.mask.begin(), text.mask.end(), 0), text.num_prompt_tokens);
  const Sequence chat = sampled_of(
      {{"messages",
        {{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", "a"}}}},
       {"reward", 1}});
  EXPECT_GT(chat.num_prompt_tokens, 0);
  EXPECT_TRUE(std::all_of(chat.mask.begin() + chat.num_prompt_tokens, chat.mask.end(),
                          [](uint8_t has_label) { return has_label == 1; }));
}

struct WrongSample {
  const char* key;
  Json value;
  const char* message;
};

TEST(SampledAnswers, WrongValuesAreNamed) {
  const std::vector<WrongSample> wrong = {
      {"completion_ids", {7, -1}, "completion_ids[1] is -1"},
      {"completion_ids", {7, 1.5}, "completion_ids[1] is 1.5"},
      {"prompt_ids", {1000000}, "prompt_ids[0] is 1000000"},
      {"logprobs", {-1, -1}, "\"logprobs\" must be a list of numbers"},
      {"logprobs", {-1, 0.5, -1}, "logprobs[1] must be a natural logarithm"},
      {"completion_mask", {1, 2, 1}, "completion_mask[1] must be 0 or 1"},
      {"completion_mask", {1}, "\"completion_mask\" must be a list as long"},
      {"reward", "high", "\"reward\" must be a number from"},
      {"reward", 1e300, "\"reward\" must be a number from"},
      {"completion_ids", 5, "\"completion_ids\" must be a list of token ids, not 5"},
      {"prompt_ids", "abc", "\"prompt_ids\" must be a list of token ids"},
      {"completion_ids", nullptr, "the record has no \"completion_ids\""},
      {"group", Json::array(), "\"group\" must be a number or a string"},
  };
  for (const WrongSample& one : wrong) {
    Json record = of_ids();
    record[one.key] = one.value;
    test::expect_error([&] { sampled_of(record); }, {one.message, "a.jsonl:1"});
  }
  test::expect_error(
      [] {
        sampled_of({{"prompt", "a"}, {"completion", "b"}, {"reward", 1}, {"logprobs", {-1}}});
      },
      {"\"logprobs\" must be a list of numbers", "prompt_ids"});
  test::expect_error(
      [] {
        sampled_of({{"prompt", "a"}, {"completion", "b"}});
      },
      {"no sampled answer with a reward", "generate -n 8 --logprobs"});
}

}  // namespace
}  // namespace sftrun::data
