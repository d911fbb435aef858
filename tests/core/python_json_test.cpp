#include "sftrun/core/python_json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sftrun/core/json_reason.h"

namespace sftrun {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(PythonJson, ReadsPythonsNumbers) {
  const auto value = parse_python_json<ordered_json>(
      R"({"b": Infinity, "a": [-Infinity, NaN, 1e999, -1e999, 1e-999, 1.5], "NaN": "Infinity"})");
  ASSERT_TRUE(value.is_object());
  EXPECT_EQ(value.begin().key(), "b");
  EXPECT_EQ(value["b"].get<double>(), kInfinity);
  EXPECT_EQ(value["a"][0].get<double>(), -kInfinity);
  EXPECT_TRUE(std::isnan(value["a"][1].get<double>()));
  EXPECT_EQ(value["a"][2].get<double>(), kInfinity);
  EXPECT_EQ(value["a"][3].get<double>(), -kInfinity);
  EXPECT_EQ(value["a"][4].get<double>(), 0);
  EXPECT_EQ(value["a"][5].get<double>(), 1.5);
  EXPECT_EQ(value["NaN"], "Infinity");
}

TEST(PythonJson, NumbersOfManyDigitsAreFiniteOrInfinite) {
  EXPECT_EQ(parse_python_json("1" + std::string(400, '0')).get<double>(), kInfinity);
  EXPECT_EQ(parse_python_json("1" + std::string(300, '0')).get<double>(), 1e300);
  EXPECT_EQ(parse_python_json("1000000000000000019884624838656").get<double>(), 1e30);
  EXPECT_EQ(parse_python_json("12345678901234567").get<int64_t>(), 12345678901234567);
}

TEST(PythonJson, WhatPythonRefusesIsNone) {
  for (const char* text :
       {"+Infinity", "-NaN", "infinity", "nan", "Inf", "[Infinity", "{\"a\": Infinit}", "Infinity1",
        "{Infinity: 1}", "[1e]", "", "--Infinity"})
    EXPECT_TRUE(parse_python_json(text).is_discarded()) << text;
  EXPECT_TRUE(parse_python_json(std::string("[1]\0", 4)).is_discarded());
  EXPECT_TRUE(parse_python_json(std::string(70, '[') + std::string(70, ']')).is_discarded());
}

TEST(PythonJson, PlacesAreThoseOfTheFile) {
  const std::string text = R"({"a": NaN, "b": Infinity, "c": oops})";
  const PythonJson python(text);
  try {
    ADD_FAILURE() << json::parse(python.text());
  } catch (const json::parse_error& error) {
    EXPECT_EQ(python.byte_in_file(error.byte), text.find("oops") + 1);
  }
  EXPECT_EQ(python.byte_in_file(3), 3U);
}

TEST(PythonJson, IsWrittenAsPythonDoes) {
  const auto value = ordered_json{{"z", kInfinity}, {"a", {-kInfinity, std::nan(""), 0.5}}};
  EXPECT_EQ(dump_python_json(value), R"({"z":Infinity,"a":[-Infinity,NaN,0.5]})");
  EXPECT_EQ(dump_python_json({{"a", kInfinity}}, 2), "{\n  \"a\": Infinity\n}");
}

std::string reason_of(const std::string& text) {
  try {
    return json::parse(text).get<std::string>();
  } catch (const json::exception& error) {
    return json_reason(error);
  }
}

TEST(JsonReason, HasNothingOfTheLibrary) {
  EXPECT_EQ(reason_of("1e999"), "a number is too large");
  EXPECT_EQ(reason_of("1"), "type must be string, but is number");
  EXPECT_EQ(reason_of("[1,]").find("exception"), std::string::npos);
  EXPECT_EQ(reason_of("[1,]").find("column"), std::string::npos);
  EXPECT_LT(reason_of("[1 \"" + std::string(20'000, 'x') + "\"]").size(), 1000U);
  EXPECT_LT(reason_of(std::string(20'000, '1')).size(), 1000U);
}

}  // namespace
}  // namespace sftrun
