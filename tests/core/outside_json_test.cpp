#include "sftrun/core/outside_json.h"

#include <gtest/gtest.h>

namespace sftrun {
namespace {

using Json = nlohmann::ordered_json;

TEST(OutsideJson, OfOthersIsDiscardedWhereItIsNoneOrTooDeep) {
  EXPECT_EQ(parse_outside_json(R"({"a": [1]})", 2), Json({{"a", {1}}}));
  EXPECT_TRUE(parse_outside_json("null", 1).is_null());
  for (const char* text : {"", "{", "{} {}", R"({"a": [1]}])", R"({"a": [[1]]})"})
    EXPECT_TRUE(parse_outside_json(text, 2).is_discarded()) << text;
}

TEST(OutsideJson, TextsAreReadWhereTheyAre) {
  const Json object = {{"name", "x"}, {"number", 1}, {"none", nullptr}};
  EXPECT_EQ(text_under(object, "name"), "x");
  for (const char* key : {"number", "none", "missing"}) EXPECT_EQ(text_under(object, key), "");
  EXPECT_EQ(text_under(Json::array({"name"}), "name"), "");
  EXPECT_EQ(text_under(nlohmann::json::parse("{\"a\": \"b\"}"), "a"), "b");
}

}  // namespace
}  // namespace sftrun
