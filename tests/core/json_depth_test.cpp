#include "sftrun/core/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace sftrun {
namespace {

TEST(JsonShape, CountsBracketsOutsideOfStrings) {
  EXPECT_EQ(json_shape("1", 10).depth, 0U);
  EXPECT_EQ(json_shape(R"({"a": ["[[[", "\"{", {}]})", 10).depth, 3U);
  EXPECT_EQ(json_shape("]]}[", 10).depth, 1U);
  EXPECT_EQ(json_shape(std::string(1 << 20, '['), 10).depth, 11U);  // and looks no further
}

TEST(JsonShape, CountsComparisonsOfKeys) {
  EXPECT_EQ(json_shape(R"({"a": 1})", 10).key_steps, 0U);
  EXPECT_EQ(json_shape(R"({"a": 1, "b:": 2, "c": 3, "d": 4})", 10).key_steps, 0U + 1 + 2 + 3);
  EXPECT_EQ(json_shape(R"({"a": {"x": 1, "y": 2}, "b": [{"z": 1}]})", 10).key_steps, 1U + 1);
}

TEST(JsonShape, ModestIsWhatFilesHold) {
  const auto object_of = [](int num_keys) {
    std::string text = "{";
    for (int i = 0; i < num_keys; ++i) text += "\"k\":1,";
    text.back() = '}';
    return text;
  };
  EXPECT_TRUE(is_modest_json(object_of(10'000), 10));
  EXPECT_FALSE(is_modest_json(object_of(30'000), 10));
  EXPECT_TRUE(is_modest_json(object_of(200'000), 10, KeyOrder::kSorted));
  EXPECT_FALSE(is_modest_json(object_of(600'000), 10, KeyOrder::kSorted));
  EXPECT_FALSE(is_modest_json("[[[]]]", 2));
  EXPECT_TRUE(is_modest_json("[" + std::string(1'000'000, ',') + "]", 2));
  EXPECT_FALSE(is_modest_json("[" + std::string(30'000'000, ',') + "]", 2));
  EXPECT_EQ(json_excess({.num_values = 30'000'000}), "JSON of too many values");
}

}  // namespace
}  // namespace sftrun
