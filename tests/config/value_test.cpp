#include "sftrun/config/value.h"

#include <gtest/gtest.h>

#include "sftrun/config/yaml_text.h"

namespace sftrun::config {
namespace {

TEST(Value, BooleansAreYaml11s) {
  for (const char* text : {"true", "True", "TRUE", "yes", "Yes", "on", "ON", "y"})
    EXPECT_EQ(parse_bool(text), true) << text;
  for (const char* text : {"false", "no", "No", "off", "OFF", "n"})
    EXPECT_EQ(parse_bool(text), false) << text;
  for (const char* text : {"", "1", "0", "t", "truee", "none"})
    EXPECT_EQ(parse_bool(text), std::nullopt) << text;
}

TEST(Value, WholeNumbers) {
  EXPECT_EQ(parse_int("0"), 0);
  EXPECT_EQ(parse_int("-7"), -7);
  EXPECT_EQ(parse_int("+7"), 7);
  EXPECT_EQ(parse_int("1e3"), 1000);
  EXPECT_EQ(parse_int("4.0"), 4);
  EXPECT_EQ(parse_int("9223372036854775807"), 9223372036854775807);
  for (const char* text :
       {"", "4.5", "four", "4 ", "0x10", "1_000", "1e99", "nan", "+-4", "9223372036854775808"}) {
    EXPECT_EQ(parse_int(text), std::nullopt) << text;
  }
}

TEST(Value, Numbers) {
  EXPECT_EQ(parse_double("2e-4"), 2e-4);
  EXPECT_EQ(parse_double("2.0e-4"), 2e-4);
  EXPECT_EQ(parse_double(".5"), 0.5);
  EXPECT_EQ(parse_double("+1"), 1.0);
  for (const char* text : {"", "inf", "nan", ".inf", "3%", "1,5", "2e", "-"})
    EXPECT_EQ(parse_double(text), std::nullopt) << text;
}

TEST(Value, JsonKeepsTypes) {
  const auto json =
      nlohmann::ordered_json::parse(R"({"b": true, "a": [1, 2.5, "3", null], "c": {"d": "yes"}})");
  EXPECT_EQ(to_json(value_from_json(json)), json);
}

TEST(YamlText, TakesWordsOfAnyLength) {
  const std::string word(4 << 20, 'a');
  EXPECT_EQ(yaml_text(word), word);
  EXPECT_EQ(yaml_text(word + " ").size(), word.size() + 3);
}

TEST(YamlText, QuotesAmbiguousText) {
  EXPECT_EQ(yaml_text("all-linear"), "all-linear");
  EXPECT_EQ(yaml_text("runs/first"), "runs/first");
  for (const char* text :
       {"no",   "On", "null", "12",   "1e5",  "",   "a: b", "#x", "2024-01-01", "a b",
        ".inf", "~",  "{x}",  "Null", "NULL", ".5", "-x",   "+x", "5a",         "é"}) {
    EXPECT_EQ(yaml_text(text).front(), '"') << text;
  }
  EXPECT_EQ(yaml_text(2e-5), "2.0e-05");  // PyYAML takes 2e-05 for text
  EXPECT_EQ(yaml_text(0.0002), "0.0002");
  EXPECT_EQ(yaml_text(nullptr), "null");
}

}  // namespace
}  // namespace sftrun::config
