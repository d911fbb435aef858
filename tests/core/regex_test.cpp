#include "sftrun/core/regex.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sftrun/core/file.h"
#include "sftrun/core/python_syntax.h"
#include "support/expect_error.h"

namespace sftrun {
namespace {

using Matches = PythonRegex::Matches;

std::string repeated(std::string_view part, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += part;
  return text;
}

/// What Python's re says: scripts/fixtures/make_regexes.py.
class PythonRegexTest : public testing::Test {
 protected:
  const nlohmann::json fixture_ =
      nlohmann::json::parse(read_text_file(SFTRUN_TEST_DATA "/core/regexes.json"));
};

TEST_F(PythonRegexTest, MatchesAsPythonDoes) {
  const std::vector<std::string> names = fixture_["names"];
  size_t num_pairs = 0;
  for (const auto& entry : fixture_["valid"]) {
    const std::string pattern = entry["pattern"];
    for (const auto& [key, how] :
         {std::pair("search", Matches::kSearch), std::pair("start", Matches::kStart),
          std::pair("whole", Matches::kWhole)}) {
      const PythonRegex regex(pattern, how);
      std::string found;
      for (const std::string& name : names) found += regex.matches(name) ? '1' : '0';
      EXPECT_EQ(found, entry[key]) << key << " of " << pattern;
      num_pairs += names.size();
    }
  }
  EXPECT_GE(num_pairs, 5000U);
}

TEST_F(PythonRegexTest, RefusesWhatPythonRefuses) {
  ASSERT_GE(fixture_["invalid"].size(), 15U);
  for (const std::string pattern : fixture_["invalid"]) {
    EXPECT_NE(regex_problem(pattern), "") << pattern;
    for (const Matches how : {Matches::kSearch, Matches::kStart, Matches::kWhole}) {
      test::expect_error<ConfigError>([&] { PythonRegex(pattern, how, "tuning.trainable"); },
                                      {"is not a regular expression: ", "at   tuning.trainable"});
    }
  }
}

TEST_F(PythonRegexTest, KeysAreReadWithinBracketsAsPeftDoes) {
  const std::vector<std::string> names = fixture_["names"];
  size_t num_refused = 0;
  for (const auto& entry : fixture_["keys"]) {
    const std::string key = entry["pattern"];
    if (entry["start"].is_null()) {
      EXPECT_NE(peft_key_problem(key), "") << key;
      ++num_refused;
      continue;
    }
    if (peft_key_problem(key) != "" && regex_problem(key) != "") continue;  // alone it is none
    const PythonRegex regex(peft_key_pattern(key), Matches::kStart);
    std::string found;
    for (const std::string& name : names) found += regex.matches(name) ? '1' : '0';
    EXPECT_EQ(found, entry["start"]) << key;
  }
  EXPECT_GE(num_refused, 25U);
}

TEST_F(PythonRegexTest, RefusesWhatVersionsOfPythonReadDifferently) {
  for (const std::string pattern : fixture_["changing"])
    EXPECT_NE(regex_problem(pattern), "") << pattern;
}

/// As re.finditer, without matches of nothing.
TEST(PythonRegex, AllMatchesInOrder) {
  const auto found = [](const char* pattern, std::string_view text) {
    std::string all;
    for (const auto& [begin, end] : PythonRegex(pattern, PythonRegex::Matches::kAll).all_in(text))
      all += std::to_string(begin) + "-" + std::to_string(end) + " ";
    return all;
  };
  EXPECT_EQ(found("a+", "aabaab"), "0-2 3-5 ");
  EXPECT_EQ(found("a*", "baac"), "1-3 ");
  EXPECT_EQ(found("aa", "aaaaa"), "0-2 2-4 ");
  EXPECT_EQ(found("^a", "aa\na"), "0-1 ");
  EXPECT_EQ(found("é|x*", "aéxé"), "1-3 3-4 4-6 ");
  EXPECT_EQ(found("(?s)<t>.*?</t>", "<t>\n</t> <t>"), "0-8 ");
  EXPECT_EQ(found("q", ""), "");
}

TEST(PythonRegex, ReasonsNameTheConstruct) {
  EXPECT_EQ(python_syntax_problem("[[:alpha:]]_proj"), "`[` in a class of characters: write \\[");
  EXPECT_EQ(python_syntax_problem("\\p{L}_proj"), "bad escape \\p");
  EXPECT_EQ(python_syntax_problem("(?<=a+)b"), "look-behind requires fixed-width pattern");
  EXPECT_EQ(python_syntax_problem("(?<=(?:ab|c.))(?P<n>d{2,3})(?P=n)(?i:x)"), "");
  EXPECT_EQ(peft_key_problem("(?i)Q_PROJ"),
            "flags such as (?i) that are not at the start of the expression; PEFT reads it within "
            "(.*\\.)?(…)$");
}

TEST(PythonRegex, AFileIsToBlameWhereItSaysSo) {
  test::expect_error<DataError>(
      [] { PythonRegex("(", Matches::kWhole, "adapter_config.json", ExitCode::kData); },
      {"`(` is not a regular expression", "adapter_config.json"});
}

TEST(PythonRegex, DepthAndLengthAreBounded) {
  for (const char* opening : {"(", "(?:", "([)]", "([[]"}) {
    const std::string nested = repeated(opening, 20'000) + "a" + repeated(")", 20'000);
    test::expect_error<ConfigError>([&] { PythonRegex(nested, Matches::kWhole); },
                                    {"`" + nested.substr(0, 200) + "… (", "not a regular expr"});
  }
  const std::string deep = repeated("(", 100) + "a" + repeated(")", 100);
  EXPECT_TRUE(PythonRegex(deep, Matches::kWhole).matches("a"));
  EXPECT_NE(regex_problem(repeated("[", 20'000)), "");
  EXPECT_NE(regex_problem(repeated("(?=", 20'000)), "");
  EXPECT_NE(regex_problem(std::string((64 << 10) + 1, 'a')), "");
  EXPECT_EQ(regex_problem(std::string(64 << 10, 'a')), "");
  EXPECT_EQ(regex_problem(repeated("(a)|", 16 << 10)), "");  // beside each other, not within
}

TEST(PythonRegex, StepsAreBounded) {
  const std::string name = std::string(200, 'a') + "c";
  for (const char* pattern : {"(a*)*b", "(a+)+b", "(a|a)*\\d", "(a|aa)+$", "(.*)*(.*)*b",
                              "((a*)*)*b", "(?:a?){200}a{200}b", "(.*)\\1(.*)\\2b"}) {
    for (const Matches how : {Matches::kSearch, Matches::kWhole}) {
      const PythonRegex regex(pattern, how, "tuning.trainable");
      try {
        EXPECT_FALSE(regex.matches(name)) << pattern;
      } catch (const ConfigError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("takes too long"), std::string::npos) << text;
        EXPECT_NE(text.find("at   tuning.trainable"), std::string::npos) << text;
      }
    }
  }
  test::expect_error<ConfigError>([&] { PythonRegex("(a|a)*\\d", Matches::kSearch).matches(name); },
                                  {"takes too long"});
  // What is honest takes few of them.
  EXPECT_TRUE(PythonRegex(".*a.*a.*c", Matches::kWhole).matches(name));
}

TEST(PythonRegex, RepeatsOfRepeatsTakeNoMemory) {
  for (const char* pattern : {"(((a{1000}){1000}){1000}){1000}", "((a{0,99999}){0,99999})c",
                              "(?:(?:(?:x{50}){50}){50}){50}"})
    EXPECT_FALSE(PythonRegex(pattern, Matches::kStart).matches("b")) << pattern;
}

TEST(PythonRegex, BytesThatAreNoTextAreRefused) {
  EXPECT_NE(regex_problem("\xFF"), "");
  EXPECT_NE(regex_problem(std::string("a\0b", 3)), "");
}

}  // namespace
}  // namespace sftrun
