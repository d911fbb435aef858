#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "functions/found_number.h"
#include "reward/answers.h"
#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/test_data.h"

namespace sftrun::reward {
namespace {

using Json = nlohmann::ordered_json;

Value value_of(const std::string& yaml, const std::string& text, Json record = Json::object()) {
  record["generated"] = text;
  const test::JudgedAnswers judged(std::vector<test::RewardRecord>{record});
  Rewards rewards(test::specs_of(yaml), {});
  return rewards.judge(judged.answers).values.at(0).at(0);
}

/// tests/data/reward/rewards.json: TRL's functions, Python's re and json, GSM8K's and MATH's patterns.
TEST(RewardFunctions, GiveTheValuesOfOtherImplementations) {
  const Json fixture = Json::parse(read_text_file(test::kData / "reward/rewards.json"));
  std::map<std::string, std::map<double, int>> seen;
  for (const Json& one : fixture["cases"]) {
    SCOPED_TRACE(one.dump());
    Json record = one["record"];
    record["generated"] = one["answer"];
    test::JudgedAnswers judged(std::vector<test::RewardRecord>{record});
    std::vector<int32_t> ids;
    if (!one["ids"].is_null()) {
      ids = one["ids"].get<std::vector<int32_t>>();
      judged.answers[0].token_ids = ids;
      judged.answers[0].num_tokens = std::ssize(ids);
    }
    Rewards rewards(test::specs_of(one["reward"].dump()), {});
    const Value value = rewards.judge(judged.answers).rewards.at(0);
    ASSERT_TRUE(value);
    EXPECT_DOUBLE_EQ(*value, one["value"].get<double>());
    ++seen[one["reward"]["name"].get<std::string>()][*value];
  }
  EXPECT_EQ(seen.size(), 6U);
  for (const auto& [name, values] : seen) EXPECT_GE(values.size(), 2U) << name;
}

TEST(RewardFunctions, ExactMatch) {
  const std::string plain = "exact_match";
  EXPECT_EQ(value_of(plain, " 42\n", {{"answer", "42"}}), 1);
  EXPECT_EQ(value_of(plain, "42", {{"answer", 42}}), 1);
  EXPECT_EQ(value_of(plain, "42.", {{"answer", "42"}}), 0);
  EXPECT_EQ(value_of(plain, "Yes", {{"answer", "yes"}}), 0);
  EXPECT_EQ(value_of("{name: exact_match, ignore_case: true}", "Yes", {{"answer", "yes"}}), 1);
  EXPECT_EQ(value_of("{name: exact_match, key: solution}", "b", {{"solution", {"a", "b"}}}), 1);
  EXPECT_EQ(value_of(plain, "42", {{"answer", nullptr}}), std::nullopt);
  test::expect_error<DataError>(
      [&] {
        value_of(plain, "42", {{"answers", "42"}});
      },
      {"exact_match reads the key \"answer\"", "answers.jsonl:1", "did you mean \"answers\"?"});
  test::expect_error<DataError>(
      [&] {
        value_of(plain, "42", {{"answer", {{"a", 1}}}});
      },
      {"\"answer\" is object"});
}

TEST(RewardFunctions, NumbersOfTexts) {
  const auto find = [](std::string_view text, NumberPlace place = NumberPlace::kAuto) {
    return find_number(text, place);
  };
  EXPECT_EQ(find("from 5-3 we get 2"), 2);
  EXPECT_EQ(find("10-3"), 3);
  EXPECT_EQ(find("it is -3."), -3);
  EXPECT_EQ(find("x=-3"), -3);
  EXPECT_EQ(find("\xE2\x88\x92"
                 "4.5"),
            -4.5);
  EXPECT_EQ(find("-$1,234.50"), -1234.5);
  EXPECT_EQ(find("costs \\$5"), 5);
  EXPECT_EQ(find("1,2,3"), 3);
  EXPECT_EQ(find("12,345,678"), 12345678);
  EXPECT_EQ(find("3,1415"), 1415);
  EXPECT_EQ(find("1e-3"), 1e-3);
  EXPECT_EQ(find(".5"), 0.5);
  EXPECT_EQ(find("3/4"), 0.75);
  EXPECT_EQ(find("on 1/2/2024"), 2024);
  EXPECT_EQ(find("\\boxed{\\frac{1}{2}} of 7"), 0.5);
  EXPECT_EQ(find("\\boxed{-\\dfrac{3}{4}}"), -0.75);
  EXPECT_EQ(find("\\boxed{1} then \\boxed{2", NumberPlace::kBoxed), std::nullopt) << "as in MATH";
  EXPECT_EQ(find("\\boxed{1} then \\boxed{2"), 2);
  EXPECT_EQ(find("#### 7 of 8"), 8);
  EXPECT_EQ(find("\\frac{1}{0}"), std::nullopt) << "and not 0";
  EXPECT_EQ(find("\\boxed{-\\tfrac10}"), std::nullopt);
  EXPECT_EQ(find("1/0"), std::nullopt);
  EXPECT_EQ(find("7, and not 1/0 or \\frac{2}{0.0}."), 7) << "passed over";
  EXPECT_EQ(find("\\frac{1e300}{1e-300}"), std::nullopt) << "beyond a double";
  EXPECT_EQ(find("\\frac{0}{4}"), 0);
  EXPECT_EQ(find("no number"), std::nullopt);
  EXPECT_EQ(find("7", NumberPlace::kBoxed), std::nullopt);
  EXPECT_EQ(find("\\boxed{7} 8", NumberPlace::kLast), 8);
  EXPECT_EQ(find(std::string(400, '9')), std::nullopt) << "beyond a double";
}

TEST(RewardFunctions, NumberComparesWithATolerance) {
  EXPECT_EQ(value_of("number", "so 0.3333333", {{"answer", "\\frac{1}{3}"}}), 1);
  EXPECT_EQ(value_of("number", "so 0.33", {{"answer", "1/3"}}), 0);
  EXPECT_EQ(value_of("{name: number, tolerance: 0.01}", "so 0.33", {{"answer", "1/3"}}), 1);
  EXPECT_EQ(value_of("{name: number, tolerance: 0.01}", "1009", {{"answer", 1000}}), 1);
  EXPECT_EQ(value_of("number", "nothing", {{"answer", 1}}), 0);
  EXPECT_EQ(value_of("number", "\\boxed{\\frac{1}{0}}", {{"answer", "0"}}), 0);
  EXPECT_EQ(value_of("number", "1", {{"answer", "none"}}), std::nullopt);
}

TEST(RewardFunctions, Json) {
  EXPECT_EQ(value_of("json", "```json\n{\"a\": 1}\n```"), 1);
  EXPECT_EQ(value_of("json", "```\n[1]\n``` "), 1);
  EXPECT_EQ(value_of("json", "```json\n{\"a\": }\n```"), 0);
  EXPECT_EQ(value_of("json", "```json ```"), 0);
  EXPECT_EQ(value_of("json", "NaN"), 0);
  EXPECT_EQ(value_of("{name: json, type: array}", "{}"), 0);
  EXPECT_EQ(value_of("{name: json, type: object}", "{}"), 1);
  EXPECT_EQ(value_of("{name: json, keys: [a, b, c], partial: true}", "{\"b\": 0}"), 0.5);
  EXPECT_EQ(value_of("{name: json, keys: a}", "{\"a\": null}"), 1);
  EXPECT_EQ(value_of("json", std::string(100'000, '[')), 0);
}

TEST(RewardFunctions, LengthOfATarget) {
  EXPECT_EQ(value_of("{name: length, target: 4}", "\xC3\xA4\xC3\xB6\xC3\xBC."), 1);
  EXPECT_EQ(value_of("{name: length, target: 4}", "123456"), 0.5);
  EXPECT_EQ(value_of("{name: length, target: 4}", "123456789"), 0);
  EXPECT_EQ(value_of("{name: length, target: 2, unit: words}", " two\n words "), 1);
  test::expect_error<DataError>([] { value_of("{name: length, target: 2, unit: tokens}", "x"); },
                                {"counts tokens", "answers.jsonl:1"});
  test::expect_error<DataError>([] { value_of("repetition", "x"); }, {"--logprobs"});
}

TEST(RewardFunctions, FormatOfSeveralParts) {
  EXPECT_EQ(value_of("format", "<think>a</think>\n<answer>b</answer>\n"), 1);
  EXPECT_EQ(value_of("format", "<think>a</think><answer>b</answer> more"), 0);
  EXPECT_EQ(
      value_of("{name: format, strict: false}", "<think>a</think> so <answer>b</answer> more"), 1);
  EXPECT_EQ(value_of("format", "<answer>b</answer><think>a</think>"), 0);
  EXPECT_EQ(value_of("format", "<think><answer>a</answer></think><answer>b</answer>"), 0);
}

TEST(RewardFunctions, RegexThatTakesTooLongIsZero) {
  EXPECT_EQ(value_of("{name: regex, pattern: '(x+x+)+y'}", std::string(5000, 'x')), 0);
}

TEST(RewardFunctions, RougeTakesTheBestReference) {
  const Json record = {{"answer", {"the cat", "police killed the gunman"}}};
  EXPECT_EQ(value_of("rouge_l", "the gunman police killed", record), 0.5);
  EXPECT_EQ(value_of("{name: rouge_l, measure: recall}", "the cat sat", record), 1);
}

TEST(Rewards, AreSummedWithTheirWeights) {
  const test::JudgedAnswers judged({{{"generated", "42"}, {"answer", "42"}},
                                    {{"generated", "4"}, {"answer", "42"}},
                                    {{"generated", "4"}, {"answer", nullptr}}});
  Rewards rewards(
      test::specs_of("[{name: exact_match, weight: 2}, {name: length, target: 2, weight: -0.5, "
                     "label: short}]"),
      {});
  const Judgement judgement = rewards.judge(judged.answers);
  EXPECT_EQ(judgement.values[0], (std::vector<Value>{1, 0, std::nullopt}));
  EXPECT_EQ(judgement.values[1], (std::vector<Value>{1, 0.5, 0.5}));
  EXPECT_EQ(judgement.rewards, (std::vector<Value>{1.5, -0.25, -0.25}));
  Rewards one(test::specs_of("exact_match"), {});
  EXPECT_EQ(one.judge(judged.answers).rewards[2], std::nullopt);
  EXPECT_TRUE(one.judge({}).rewards.empty());
}

TEST(Rewards, ASumThatIsNotFiniteIsRefused) {
  const test::JudgedAnswers judged(
      {{{"generated", "4"}, {"answer", "42"}}, {{"generated", "42"}, {"answer", "42"}}});
  Rewards rewards(
      test::specs_of("[{name: exact_match, weight: 1e308, label: first}, {name: number, weight: "
                     "1e308, label: second}]"),
      {});
  test::expect_error<DataError>(
      [&] { rewards.judge(judged.answers); },
      {"the weighted sum of the rewards is no number from -1e+12 to 1e+12",
       "first (weight 1e+308, value 1)", "second (weight 1e+308, value 1)", "answers.jsonl:2"});
}

TEST(Rewards, WhatProgramsGetOfARecord) {
  const Json record = {{"prompt", "old"}, {"id", 7}, {"completion", "the reference"}};
  const Answer answer{.text = "said", .record = &record, .prompt = "asked"};
  EXPECT_EQ(judged_record(answer), (Json{{"prompt", "asked"},
                                         {"completion", "said"},
                                         {"id", 7},
                                         {"reference_completion", "the reference"}}));
}

}  // namespace
}  // namespace sftrun::reward
