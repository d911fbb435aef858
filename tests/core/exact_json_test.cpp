#include "sftrun/core/exact_json.h"

#include <gtest/gtest.h>

#include <limits>

namespace sftrun {
namespace {

constexpr const char* kLong = "12345678901234567890123";

TEST(ExactJson, NumbersStayAsTheyAreWritten) {
  for (const char* text : {"0", "-0", "-7", "9223372036854775808", "18446744073709551616", kLong,
                           "-12345678901234567890123", "4.50", "1e5", "1E+3", "0.1", "-0.0",
                           "1e+16", "1e-400", "[1.0,{\"a\":2.50}]"})
    EXPECT_EQ(to_json_text(parse_exact_json(text)), text);
  EXPECT_EQ(to_json_text(parse_exact_json(R"({"a": [null, true, "é\n"], "b": {}})")),
            R"({"a":[null,true,"é\n"],"b":{}})");
}

TEST(ExactJson, OnlyWhatNumbersCannotHoldIsKept) {
  EXPECT_TRUE(is_kept_integer(parse_exact_json(kLong)));
  EXPECT_TRUE(is_kept_fraction(parse_exact_json("4.50")));
  for (const char* text : {"18446744073709551615", "4.5", "1e+16"})
    EXPECT_TRUE(parse_exact_json(text).is_number()) << text;
  EXPECT_EQ(parse_exact_json("1e+16"), 1e16);
  EXPECT_STREQ(json_type(parse_exact_json(kLong)), "number");
  EXPECT_DOUBLE_EQ(number_value(parse_exact_json(kLong)), 12345678901234567890123.0);
  ExactJson value = parse_exact_json(R"([4.50, {"x": 1e-400, "y": 12345678901234567890123}])");
  round_fractions(value);
  EXPECT_EQ(to_json_text(value), R"([4.5,{"x":0.0,"y":12345678901234567890123}])");
  ExactJson zeros = parse_exact_json(R"([-0, {"x": -0.0}, -0])");
  round_fractions(zeros);
  EXPECT_EQ(to_json_text(zeros), R"([0,{"x":-0.0},0])") << "as Python's json.loads";
}

TEST(ExactJson, TheLastOfEqualKeysCounts) {  // at the place of the first, as in Python
  EXPECT_EQ(to_json_text(parse_exact_json(R"({"a": {"x": 1}, "b": 2, "a": [3]})")),
            R"({"a":[3],"b":2})");
}

TEST(ExactJson, RefusesWhatIsNoJsonOrNoDouble) {
  EXPECT_THROW(parse_exact_json("{\"a\": }"), ExactJson::parse_error);
  EXPECT_THROW(parse_exact_json("1 2"), ExactJson::parse_error);
  EXPECT_THROW(parse_exact_json("1e400"), ExactJson::out_of_range);
  EXPECT_THROW(parse_exact_json(std::string(400, '1')), ExactJson::out_of_range);
}

// What Python 3.11 prints.
TEST(ExactJson, FloatsAreWrittenAsPythonDoes) {
  const std::pair<double, const char*> cases[] = {{0.1, "0.1"},
                                                  {3, "3.0"},
                                                  {-0.0, "-0.0"},
                                                  {1e15, "1000000000000000.0"},
                                                  {1e16, "1e+16"},
                                                  {1e22, "1e+22"},
                                                  {1e-4, "0.0001"},
                                                  {1e-5, "1e-05"},
                                                  {5e-324, "5e-324"},
                                                  {0.1F, "0.10000000149011612"},
                                                  {123456.789, "123456.789"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(float_repr(value), text);
  EXPECT_EQ(float_repr(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(to_json_text(std::numeric_limits<double>::quiet_NaN()), "null");
}

}  // namespace
}  // namespace sftrun
