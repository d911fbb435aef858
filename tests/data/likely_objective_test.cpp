#include "sftrun/data/likely_objective.h"

#include <gtest/gtest.h>

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
        std::pair(R"({"query": "a", "response": "b"})", kSft), std::pair(R"({"text": "a"})", kSft)})
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

}  // namespace
}  // namespace sftrun::data
