#include "sftrun/data/likely_objective.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "support/expect_error.h"

namespace sftrun::data {
namespace {

TEST(LikelyObjective, IsThatWhichReadsTheColumns) {
  using enum config::Objective;
  for (const auto& [record, objective] :
       {std::pair(R"({"prompt": "a", "chosen": "b", "rejected": "c"})", kDpo),
        std::pair(R"({"prompt": "a", "completion": "b", "reward": 1})", kGrpo),
        std::pair(R"({"prompt": "a", "completion": "b", "label": true})", kKto),
        std::pair(R"({"text": "a", "label": "b"})", kClassify),
        std::pair(R"({"query": "a", "pos": ["b"], "neg": ["c"]})", kEmbed),
        std::pair(R"({"anchor": "a", "positive": "b"})", kEmbed),
        std::pair(R"({"prompt": "a", "answer": 3})", kGrpo),
        std::pair(R"({"messages": [{"role": "user", "content": "a"}]})", kGrpo),
        std::pair(R"({"messages": [{"role": "user", "content": "a"},
                                   {"role": "assistant", "content": "b"}]})",
                  kSft),
        std::pair(R"({"conversations": [{"from": "human", "value": "a"}]})", kGrpo),
        std::pair(R"({"prompt": "a", "completion": "b"})", kSft),
        std::pair(R"({"instruction": "a", "output": "b"})", kSft),
        std::pair(R"({"query": "a", "response": "b"})", kSft),
        std::pair(R"({"question": "a", "answer": "so 3\n#### 3"})", kSft),
        std::pair(R"({"question": "a", "answer": 3})", kGrpo),
        std::pair(R"({"problem": "a"})", kGrpo), std::pair(R"({"text": "a"})", kSft)})
    EXPECT_EQ(likely_objective(Json::parse(record)), objective) << record;
}

TEST(LikelyObjective, OfPromptsTheRecordSaysWhatMayJudge) {
  for (const auto& [record, reward] :
       {std::pair(R"({"prompt": "a", "answer": 3})", "number"),
        std::pair(R"({"prompt": "a", "answer": "so 3\n#### 3"})", "number"),
        std::pair(R"({"prompt": "a", "solution": "\\boxed{3}"})", "{name: number, key: solution}"),
        std::pair(R"({"prompt": "a", "target": ["x", "y"]})", "{name: exact_match, key: target}"),
        std::pair(R"({"prompt": "a", "answer": null})", ""), std::pair(R"({"prompt": "a"})", "")}) {
    EXPECT_EQ(likely_reward(Json::parse(record)), reward) << record;
    EXPECT_TRUE(is_prompt_alone(Json::parse(record))) << record;
  }
}

TEST(LikelyObjective, ColumnsOfUsualNamesAreMapped) {
  for (const auto& [record, fields] :
       {std::pair(R"({"question": "a", "answer": "b"})",
                  R"({"instruction":"question","output":"answer"})"),
        std::pair(R"({"Query": "a", "Response": "b"})",
                  R"({"instruction":"Query","output":"Response"})"),
        std::pair(R"({"problem": "a", "solution": "b", "answer": "3"})",
                  R"({"instruction":"problem","output":"solution"})"),
        std::pair(R"({"instruction": "a", "response": "b"})", R"({"output":"response"})"),
        std::pair(R"({"prompt": "a", "completion": "b"})", "{}"),
        std::pair(R"({"text": "a", "question": "b", "answer": "c"})", "{}"),
        std::pair(R"({"question": "a", "chosen": "b", "rejected": "c"})",
                  R"({"prompt":"question"})"),
        std::pair(R"({"system": "s", "question": "a", "chosen": "b", "rejected": "c"})",
                  R"({"instruction":"question"})"),
        std::pair(R"({"instruction": "a", "context": "c", "response": "b", "category": "d"})",
                  R"({"output":"response","input":"context"})"),
        std::pair(R"({"instruction": "a", "input": "i", "context": "c", "output": "b"})", "{}"),
        std::pair(R"({"system_prompt": "s", "question": "a", "response": "b"})",
                  R"({"instruction":"question","output":"response","system":"system_prompt"})"),
        std::pair(R"({"system_prompt": "s", "prompt": "a", "completion": "b"})",
                  R"({"instruction":"prompt","system":"system_prompt","output":"completion"})"),
        std::pair(R"({"system_prompt": "s", "conversations": [{"from": "human", "value": "a"},
                      {"from": "gpt", "value": "b"}]})",
                  R"({"system":"system_prompt"})"),
        std::pair(R"({"question": "a", "chosen": [{"role": "user"}], "rejected": []})", "{}"),
        std::pair(R"({"prompt": "p", "question": "a", "chosen": "b", "rejected": "c"})", "{}"),
        std::pair(R"({"question": "a", "answer": 3})", "{}"), std::pair(R"({"id": 3})", "{}")})
    EXPECT_EQ(likely_fields(Json::parse(record), false).dump(), fields) << record;
  EXPECT_EQ(likely_fields_of_texts(Json::parse(R"({"query": "a", "answer": "b"})")).dump(),
            R"({"anchor":"query","positive":"answer"})");
  EXPECT_EQ(likely_fields_of_texts(Json::parse(R"({"query": "a", "positive": "b"})")).dump(), "{}");
  const Json gsm8k = Json::parse(R"({"question": "a", "answer": "#### 3"})");
  EXPECT_EQ(likely_fields(gsm8k, true).dump(), R"({"prompt":"question"})");
  EXPECT_EQ(likely_fields(Json::parse(R"({"prompt": "a", "question": "b"})"), true).dump(), "{}");
  EXPECT_EQ(
      likely_fields(Json::parse(R"({"question": "a", "context": "c", "answer": 3})"), true).dump(),
      R"({"instruction":"question","input":"context"})");
  EXPECT_EQ(likely_fields(Json::parse(R"({"prompt": "a", "system_prompt": "c"})"), true).dump(),
            R"({"instruction":"prompt","system":"system_prompt"})");
  EXPECT_TRUE(has_question(gsm8k));
  for (const char* record :
       {R"({"text": "a"})", R"({"prompt": "a", "completion": "b", "reward": 1})",
        R"({"prompt": "a", "chosen": "b", "rejected": "c"})"})
    EXPECT_FALSE(has_question(Json::parse(record))) << record;
}

TEST(LikelyObjective, AnAnswersJudgementMayHaveAnotherName) {
  for (const char* record : {R"({"prompt": "a", "completion": "b", "thumbs_up": false})",
                             R"({"question": "a", "answer": "b", "thumbs_up": "True"})"}) {
    EXPECT_EQ(likely_objective(Json::parse(record)), config::Objective::kKto) << record;
    EXPECT_EQ(likely_fields_of_label(Json::parse(record)).dump(), R"({"label":"thumbs_up"})");
  }
  for (const char* record : {R"({"prompt": "a", "completion": "b", "thumbs_up": "many"})",
                             R"({"prompt": "a", "completion": "b", "thumbs_up": 1, "label": 0})",
                             R"({"text": "a", "thumbs_up": true})", R"({"thumbs_up": true})"})
    EXPECT_EQ(likely_fields_of_label(Json::parse(record)).dump(), "{}") << record;
}

TEST(LikelyObjective, ColumnsThatNothingReadsAreNamed) {
  using enum config::Objective;
  using Columns = std::vector<std::string>;
  const auto unused = [](const char* record, const char* fields, config::Objective objective) {
    return unused_columns(mapped_record(Json::parse(record), Json::parse(fields), "a:1"),
                          objective);
  };
  const char* dolly = R"({"instruction": "a", "context": "c", "response": "b", "category": "d"})";
  EXPECT_EQ(unused(dolly, R"({"output": "response", "input": "context"})", kSft),
            Columns{"category"});
  EXPECT_EQ(unused(dolly, R"({"output": "response"})", kSft), (Columns{"context", "category"}));
  EXPECT_EQ(unused(R"({"messages": [], "system_prompt": "s", "id": null})", "{}", kSft),
            Columns{"system_prompt"});
  const char* pair = R"({"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1, "input": ""})";
  EXPECT_EQ(unused(pair, "{}", kReward), Columns{"input"});
  EXPECT_EQ(unused(pair, "{}", kDpo), (Columns{"margin", "input"}));
  EXPECT_EQ(
      unused(R"({"instruction": "a", "system": "s", "chosen": "b", "rejected": "c"})", "{}", kDpo),
      Columns{});
  EXPECT_EQ(unused(R"({"prompt": "a", "completion": "b", "label": true, "id": 1})", "{}", kKto),
            Columns{"id"});
  EXPECT_EQ(unused(R"({"prompt": "a", "label": "x", "url": "u"})", "{}", kClassify),
            Columns{"url"});
  EXPECT_EQ(unused(R"({"query": "a", "pos": ["b"], "negative_1": "c", "score": 1})", "{}", kEmbed),
            Columns{"score"});
  EXPECT_EQ(unused(R"({"id": 1})", "{}", kSft), Columns{}) << "the checks refuse it";
}

TEST(LikelyObjective, AReferenceIsAKeyOfAUsualName) {
  using config::Reward;
  const Json record = Json::parse(R"({"solution": "#### 3", "expected": "x"})");
  EXPECT_EQ(likely_reference(record, Reward::kNumber), "solution");
  const Json text = Json::parse(R"({"answer": "x", "target": 3})");
  EXPECT_EQ(likely_reference(text, Reward::kNumber), "target");
  EXPECT_EQ(likely_reference(text, Reward::kExactMatch), "answer");
  EXPECT_EQ(likely_reference(Json::parse(R"({"id": 1})"), Reward::kNumber), "");
}

TEST(LikelyObjective, AnUnfitRecordSaysWhatItLacks) {
  using config::Objective;
  const Json pair = Json::parse(R"({"prompt": "a", "chosen": "b", "rejected": "c"})"),
             gsm8k = Json::parse(R"({"question": "a", "answer": "b"})"), none = Json::object();
  for (const Objective fitting : {Objective::kSimpo, Objective::kReward, Objective::kKto})
    require_fit(pair, none, fitting, false, "a:1");
  require_fit(gsm8k, likely_fields(gsm8k, false), Objective::kSft, false, "a:1");
  require_fit(gsm8k, likely_fields(gsm8k, true), Objective::kGrpo, true, "a:1");
  test::expect_error<DataError>([&] { require_fit(gsm8k, none, Objective::kDpo, false, "a:1"); },
                                {"no \"chosen\" and \"rejected\"", "\"question\"", "a:1"});
  test::expect_error<DataError>([&] { require_fit(gsm8k, none, Objective::kGrpo, true, "a:1"); },
                                {"has no prompt", "data.fields: {prompt: question}"});
}

}  // namespace
}  // namespace sftrun::data
