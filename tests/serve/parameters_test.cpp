#include "../../src/serve/parameters.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "sftrun/serve/api_error.h"

namespace sftrun::serve {
namespace {

/// Why reading is refused, as "parameter: message"; "" if it is not.
std::string refusal(const Json& body, const std::function<void(Parameters&)>& read) {
  Parameters parameters(body);
  try {
    read(parameters);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param() + ": " + error.what();
  }
  return "";
}

TEST(ParametersTest, AbsentKeysAndNullsAreTheSame) {
  const Json body = {{"a", nullptr}};
  Parameters parameters(body);
  for (const char* key : {"a", "b"}) {
    EXPECT_EQ(parameters.find(key), nullptr);
    EXPECT_FALSE(parameters.flag(key));
    EXPECT_EQ(parameters.integer(key, 1, 2), std::nullopt);
    EXPECT_EQ(parameters.number(key, 1, 2), std::nullopt);
    EXPECT_EQ(parameters.seed(key), std::nullopt);
    EXPECT_TRUE(parameters.texts(key, 0, 0).empty());
    parameters.require_neutral(key, {}, "why");
  }
}

TEST(ParametersTest, NumbersAreInTheirRange) {
  const auto whole = [](const Json& value) {
    return refusal({{"n", value}}, [](Parameters& read) { read.integer("n", 1, 128); });
  };
  for (const Json& value : {Json(1), Json(128), Json(2.0)}) EXPECT_EQ(whole(value), "") << value;
  for (const Json& value :
       {Json(0), Json(129), Json(-1), Json("1"), Json(true), Json::array({1}), Json(1e300),
        Json(std::numeric_limits<double>::quiet_NaN()), Json(std::numeric_limits<uint64_t>::max())})
    EXPECT_EQ(whole(value), "n: \"n\" must be a number from 1 to 128") << value;
  EXPECT_EQ(whole(1.5), "n: \"n\" must be a whole number");
  const Json body = {{"t", 0.25}, {"n", 7}};
  Parameters parameters(body);
  EXPECT_EQ(parameters.number("t", 0, 2), 0.25);
  EXPECT_EQ(parameters.integer("n", 1, 128), 7);
}

TEST(ParametersTest, ASeedIsAnyIntegerOf64Bits) {
  const auto seed = [](const Json& value) {
    const Json body = {{"seed", value}};
    return Parameters(body).seed("seed");
  };
  EXPECT_EQ(seed(std::numeric_limits<uint64_t>::max()), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(seed(0), 0U);
  EXPECT_EQ(seed(-1), std::numeric_limits<uint64_t>::max());
  for (const Json& value : {Json(1.0), Json("1"), Json(true)})
    EXPECT_EQ(refusal({{"seed", value}}, [](Parameters& read) { read.seed("seed"); }),
              "seed: \"seed\" must be an integer of 64 bits")
        << value;
}

TEST(ParametersTest, FlagsAreTrueOrFalse) {
  const Json body = {{"yes", true}, {"no", false}};
  Parameters parameters(body);
  EXPECT_TRUE(parameters.flag("yes"));
  EXPECT_FALSE(parameters.flag("no"));
  for (const Json& value : {Json(1), Json("true")})
    EXPECT_EQ(refusal({{"yes", value}}, [](Parameters& read) { read.flag("yes"); }),
              "yes: \"yes\" must be true or false");
}

TEST(ParametersTest, TextsAreLimitedInNumberAndLength) {
  const auto read = [](const Json& value) {
    const Json body = {{"stop", value}};
    return Parameters(body).texts("stop", 2, 3);
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(read("abc"), Texts{"abc"});
  EXPECT_EQ(read(Json::array({"a", "b"})), (Texts{"a", "b"}));
  EXPECT_EQ(read(Json::array()), Texts());
  const auto refused = [](const Json& value) {
    return refusal({{"stop", value}}, [](Parameters& of) { of.texts("stop", 2, 3); });
  };
  EXPECT_EQ(refused(Json::array({"a", "b", "c"})), "stop: \"stop\" has more than 2 strings");
  EXPECT_EQ(refused("abcd"), "stop: \"stop\" has a string of 4 bytes; at most 3 are allowed");
  for (const Json& value :
       {Json(""), Json(1), Json::array({"a", ""}), Json::array({1}), Json::object({{"a", "b"}})})
    EXPECT_EQ(refused(value), "stop: \"stop\" must be a string or a list of strings, none empty")
        << value;
}

TEST(ParametersTest, KeysThatWouldChangeTheAnswerMustBeNeutral) {
  const auto refused = [](const Json& value) {
    return refusal({{"best_of", value}}, [](Parameters& read) {
      read.require_neutral("best_of", {1, "one"}, "there is no choice");
    });
  };
  EXPECT_EQ(refused(1), "");
  EXPECT_EQ(refused("one"), "");
  EXPECT_EQ(refused(2), "best_of: \"best_of\" is not supported: there is no choice");
}

TEST(ParametersTest, KeysThatNobodyAskedForAreRefused) {
  const auto refused = [](const Json& body) {
    return refusal(body, [](Parameters& read) {
      read.find("temperature");
      read.ignore({"user"});
      read.require_no_others();
    });
  };
  EXPECT_EQ(refused(Json::object()), "");
  EXPECT_EQ(refused({{"user", "me"}, {"temperature", 1}}), "");
  EXPECT_EQ(refused({{"temprature", 1}}),
            "temprature: \"temprature\" is not a parameter of this request; did you mean "
            "\"temperature\"?");
  EXPECT_EQ(refused({{"xyz", nullptr}}), "xyz: \"xyz\" is not a parameter of this request");
  const std::string quoted = refused({{std::string(10'000, 'k'), 1}});
  EXPECT_LT(quoted.find("is not a parameter") - quoted.find('"'), 500U) << "quotes are shortened";
}

}  // namespace
}  // namespace sftrun::serve
