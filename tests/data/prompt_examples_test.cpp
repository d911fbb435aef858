#include <gtest/gtest.h>

#include <algorithm>

#include "../../src/data/fit.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/data/example_store.h"
#include "sftrun/data/prompt.h"
#include "sftrun/data/sequence.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "toy_model.h"

/// Records as prompts that the run itself answers (`train.rollouts`).
namespace sftrun::data {
namespace {

Sequence prompt_sequence(const Json& record, std::optional<bool> chat = std::nullopt) {
  const SequenceBuilder builder(detect_prompt_format(record, "a.jsonl:1").format,
                                test::toy_model(test::kChatMl),
                                {.form = config::ExampleForm::kPrompt, .chat = chat});
  return builder.build(record, "a.jsonl:1").at(0);
}

TEST(PromptExamples, HaveTheTokensOfGenerate) {
  const TextModel model = test::toy_model(test::kChatMl);
  for (const Json& record :
       {Json{{"prompt", "two and two"}, {"answer", "4"}},
        Json{{"messages",
              {{{"role", "user"}, {"content", "q"}}, {{"role", "assistant"}, {"content", "a"}}}}},
        Json{{"instruction", "add"}, {"input", "1 2"}}, Json{{"text", "once"}}}) {
    const Sequence sequence = prompt_sequence(record);
    EXPECT_EQ(sequence.ids, PromptBuilder(model, /*chat=*/true).build(record, "a").ids) << record;
    EXPECT_EQ(parse_json_text(sequence.record_text), record) << "rewards read it";
  }
  const Json text = {{"prompt", "two"}};
  EXPECT_EQ(prompt_sequence(text, false).ids,
            PromptBuilder(model, /*chat=*/false).build(text, "a").ids);
  EXPECT_NE(prompt_sequence(text, false).ids, prompt_sequence(text).ids);
  const Sequence one = prompt_sequence({{"prompt", "a"}}, false);
  EXPECT_EQ(one.ids.size(), 1U);
  EXPECT_EQ(fate_of(one, LengthRule{.answer_tokens = 8}, "a"), Fate::kKept);
  EXPECT_EQ(std::count(one.mask.begin(), one.mask.end(), 1), 0) << "prompts are not trained on";
}

TEST(PromptExamples, OtherRecordsAreKeptWhereTheRunAnswersSomeOfThem) {
  const Json record = {{"prompt", "two"}, {"completion", " 2"}};
  const auto built = [&](bool keeps) {
    return SequenceBuilder(RecordFormat::kPromptCompletion, test::toy_model(test::kChatMl),
                           {.keeps_records = keeps})
        .build(record, "a.jsonl:1")
        .at(0);
  };
  const Sequence kept = built(true), plain = built(false);
  EXPECT_EQ(parse_json_text(kept.record_text), record);
  EXPECT_EQ(plain.record_text, "");
  EXPECT_FALSE(kept.is_prompt);
  EXPECT_EQ(kept.ids, plain.ids);
  EXPECT_EQ(kept.mask, plain.mask) << "with its labels";
  EXPECT_EQ(to_example(kept, 64, 0).record_text, kept.record_text);
  config::RunConfig config;
  config.train.objective = config::Objective::kDistill;
  EXPECT_FALSE(config.train.keeps_asked_records());
  config.train.rollouts.share = 1;
  EXPECT_TRUE(config.train.keeps_asked_records());
  config.train.rollouts.num_samples = 0;
  EXPECT_FALSE(config.train.keeps_asked_records());
}

TEST(PromptExamples, ARecordWithoutAPromptIsRefused) {
  test::expect_error<DataError>(
      [] {
        detect_prompt_format({{"answer", "4"}}, "a.jsonl:3");
      },
      {"has no prompt"});
}

TEST(PromptExamples, AnAnswerMustFitBehind) {
  config::RunConfig config;
  config.train.objective = config::Objective::kGrpo;
  config.train.rollouts.reward = {{.label = "exact_match"}};
  config.train.rollouts.max_new_tokens = 100;
  config.model.max_seq_len = 104;
  LengthRule rule = length_rule(config, RecordFormat::kText);
  EXPECT_EQ(rule.max_seq_len, 4);
  Sequence sequence{.ids = {1, 2, 3, 4}, .mask = {0, 0, 0, 0}, .is_prompt = true};
  EXPECT_EQ(fate_of(sequence, rule, "a"), Fate::kKept);
  sequence.ids.push_back(5);
  sequence.mask.push_back(1);
  EXPECT_EQ(fate_of(sequence, rule, "a"), Fate::kTooLong) << "a prompt is not cut";
  config.data.too_long = config::TooLong::kError;
  rule = length_rule(config, RecordFormat::kText);
  test::expect_error<DataError>([&] { fate_of(sequence, rule, "a"); },
                                {"model.max_seq_len 104 less train.rollouts.max_new_tokens 100"});
}

TEST(PromptExamples, TheRecordIsKeptWithTheExample) {
  const test::TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "examples";
  const std::string texts[] = {R"({"prompt":"a","answer":"ü"})", "", R"({"prompt":"bcd"})"};
  ExampleWriter writer(file);
  std::vector<Example> examples;
  for (const std::string& text : texts) {
    Example example{.tokens = {1, 2, 3}, .labels = {2, 3, kIgnoreIndex}, .label_tokens = 2};
    example.values.of(LabelColumn::kWeight) = {1, 0.5F};
    example.targets = {3};
    example.record_text = text;
    writer.add(example);
    examples.push_back(std::move(example));
  }
  writer.finish({{"key", "k"}});
  for (const ExampleStore& store : {ExampleStore::open(file), ExampleStore::in_memory(examples)})
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_EQ(store.record_text_of(i), texts[i]);
      EXPECT_EQ(store.targets_of(i), (std::vector<float>{3}));
      EXPECT_EQ(store[i].token(2), 3);
    }
}

}  // namespace
}  // namespace sftrun::data
