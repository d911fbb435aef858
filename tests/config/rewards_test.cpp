#include "sftrun/config/rewards.h"

#include <gtest/gtest.h>

#include "sftrun/config/yaml_reader.h"
#include "sftrun/core/file.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::config {
namespace {

struct ReadRewards {
  explicit ReadRewards(const std::string& yaml)
      : specs(parse_rewards(parse_yaml(yaml, "r.yaml", problems), "r.yaml", problems)) {}
  Problems problems;  // first
  RewardSpecs specs;
};

/// "message | where | fix" of the only problem.
std::string problem_of(const std::string& yaml) {
  const ReadRewards read(yaml);
  if (read.problems.size() != 1) return std::to_string(read.problems.size()) + " problems";
  const Problem& one = read.problems[0];
  return one.message + " | " + one.where + " | " + one.fix;
}

TEST(RewardSpecs, ANameOrAMapOrAList) {
  for (const char* yaml :
       {"number", "{name: number}", "[number]", "- name: number\n  weight: 1.0\n  key:\n"}) {
    const ReadRewards read(yaml);
    ASSERT_TRUE(read.problems.empty()) << yaml;
    ASSERT_EQ(read.specs.size(), 1U) << yaml;
    EXPECT_EQ(read.specs[0].reward, Reward::kNumber);
    EXPECT_EQ(read.specs[0].label, "number");
    EXPECT_EQ(read.specs[0].weight, 1);
    EXPECT_EQ(read.specs[0].settings.dump(), R"({"key":"answer","find":"auto","tolerance":1e-06})");
  }
}

TEST(RewardSpecs, SettingsHaveTheirTypes) {
  const ReadRewards read(
      "- {name: json, keys: name, partial: yes, weight: -0.5, label: form}\n"
      "- {name: program, command: python3 judge.py, timeout: 1e1}\n"
      "- {name: length, maximum: 1e2, unit: tokens}\n");
  ASSERT_TRUE(read.problems.empty()) << report_of(read.problems);
  EXPECT_EQ(read.specs[0].settings.dump(),
            R"({"keys":["name"],"type":"any","fence":true,"partial":true})");
  EXPECT_EQ(read.specs[0].label, "form");
  EXPECT_EQ(read.specs[0].where, "r.yaml:1:10");
  EXPECT_EQ(read.specs[1].settings.dump(),
            R"({"command":"python3 judge.py","timeout":10.0,"restarts":2})");
  EXPECT_EQ(read.specs[2].settings.dump(),
            R"({"target":null,"maximum":100,"margin":0,"unit":"tokens"})");
  const std::string text = to_json(read.specs).dump();
  EXPECT_EQ(text, R"([{"name":"json","label":"form","weight":-0.5,"keys":["name"],"partial":true},)"
                  R"({"name":"program","command":"python3 judge.py","timeout":10.0},)"
                  R"({"name":"length","maximum":100,"unit":"tokens"}])");
  EXPECT_EQ(ReadRewards(text).specs, read.specs);
}

TEST(RewardSpecs, UnknownNamesAndKeysAreNamedWithTheNearest) {
  EXPECT_EQ(problem_of("exact_mach"),
            "unknown reward `exact_mach` | r.yaml:1:1 | did you mean `exact_match`?");
  EXPECT_EQ(problem_of("[number, {name: gsm8k}]"),
            "unknown reward `gsm8k` | r.yaml:1:17 | did you mean `number`?");
  EXPECT_EQ(problem_of("- name: regex\n  patern: x\n  pattern: x"),
            "unknown key `patern` of the reward regex | r.yaml:2:3 | did you mean `pattern`?");
  EXPECT_NE(problem_of("zzzzzzzzzz").find("the rewards are exact_match, regex"), std::string::npos);
  EXPECT_NE(problem_of("{name: format, quux: 1}")
                .find("its keys are name, weight, label, tags and strict"),
            std::string::npos);
}

TEST(RewardSpecs, WrongValuesAreNamed) {
  EXPECT_EQ(problem_of("{name: number, tolerance: -1}"),
            "`tolerance` of the reward number is `-1`; it takes a number from 0 | r.yaml:1:27 | ");
  EXPECT_EQ(
      problem_of("{name: regex, pattern: x, match: whole}"),
      "`match` of the reward regex is `whole`; it takes search, start or full | r.yaml:1:34 | ");
  EXPECT_EQ(
      problem_of("{name: repetition, penalty: 1}"),
      "`penalty` of the reward repetition is `1`; it takes a number up to 0 | r.yaml:1:29 | ");
  EXPECT_NE(
      problem_of("{name: number, weight: 0}").find("has no effect; it takes a number other than 0"),
      std::string::npos);
  EXPECT_NE(problem_of("regex").find("the reward regex has no `pattern`"), std::string::npos);
  EXPECT_NE(problem_of("{name: regex, pattern: '(a'}").find("is not a regular expression"),
            std::string::npos);
  EXPECT_NE(problem_of("{name: reward_model, url: 'http://judge:8000/?key=1'}").find("has a query"),
            std::string::npos);
  EXPECT_EQ(problem_of("{name: http, url: 'http://judge:8000/?key=1'}"), "0 problems");
  EXPECT_NE(problem_of("{name: reward_model}").find("http://127.0.0.1:8000"), std::string::npos);
  EXPECT_NE(problem_of("{name: http, url: localhost:80}").find("does not begin with http"),
            std::string::npos);
  EXPECT_NE(problem_of("{name: length, target: 3, margin: 2}")
                .find("`margin` of the reward length has no effect without `maximum`"),
            std::string::npos);
  EXPECT_NE(problem_of("{name: length, target: 3, maximum: 2}")
                .find("has target and maximum | r.yaml:1:8 | write one of them"),
            std::string::npos);
  EXPECT_NE(problem_of("length").find("has no target and no maximum"), std::string::npos);
  EXPECT_NE(problem_of("{name: length, maximum: 3, margin: 4}")
                .find("`margin` of the reward length is above"),
            std::string::npos);
  EXPECT_NE(problem_of("{name: format, tags: [a, a]}").find("not different names"),
            std::string::npos);
  EXPECT_NE(problem_of("{name: format, tags: []}").find("not different names"), std::string::npos);
  EXPECT_NE(problem_of("{name: json, type: array, keys: [a]}").find("`type` is array"),
            std::string::npos);
  EXPECT_NE(problem_of("[number, number]").find("two rewards are called `number` | r.yaml:1:10"),
            std::string::npos);
  EXPECT_NE(problem_of("[]").find("the list of rewards is empty"), std::string::npos);
  EXPECT_NE(problem_of("[[number]]").find("a reward is a list"), std::string::npos);
  EXPECT_NE(problem_of("[{weight: 2}]").find("a reward has no name"), std::string::npos);
  const ReadRewards several("- {name: number, tolerance: x}\n- nothing\n- {name: json, key: a}\n");
  EXPECT_EQ(several.problems.size(), 3U);
}

TEST(RewardSpecs, OfFiles) {
  const test::TemporaryDirectory directory;
  write_file_atomically(directory / "a.yaml", "reward:\n  - number\n");
  write_file_atomically(directory / "a.json", R"([{"name": "number"}])");
  EXPECT_EQ(read_rewards((directory / "a.yaml").string()),
            read_rewards((directory / "a.json").string()));
  write_file_atomically(directory / "b.yaml", "- numbr\n");
  try {
    read_rewards((directory / "b.yaml").string());
    ADD_FAILURE();
  } catch (const ConfigProblems& error) {
    EXPECT_NE(std::string(error.what()).find("b.yaml:1:3"), std::string::npos) << error.what();
  }
}

TEST(RewardRows, AreInTheDocument) {
  const std::string page = read_text_file(test::kData / "../../docs/rewards.md");
  EXPECT_NE(page.find("<!-- rows -->\n" + reward_reference() + "<!-- end of rows -->"),
            std::string::npos)
      << "write this between the comments:\n"
      << reward_reference();
}

TEST(RewardRows, AreComplete) {
  for (const RewardInfo& info : kRewards) {
    EXPECT_FALSE(info.name.empty() || info.description.empty() || info.formula.empty());
    for (const RewardSetting& setting : info.settings) {
      SCOPED_TRACE(std::string(info.name) + "." + std::string(setting.name));
      EXPECT_FALSE(setting.description.empty() || setting.example.empty());
      EXPECT_TRUE(setting.fallback.empty() || nlohmann::json::accept(setting.fallback));
      EXPECT_FALSE(setting.is_required && !setting.fallback.empty());
      EXPECT_EQ(setting.type == RewardSetting::Type::kChoice, setting.choices.size() > 0);
    }
  }
}

}  // namespace
}  // namespace sftrun::config
