#include "config_test_base.h"
#include "support/expect_error.h"

namespace sftrun::config {
namespace {

using test::expect_error;

class ProjectorsTest : public ConfigTest {
 protected:
  LoadedConfig load_model(const std::string& projectors,
                          const std::vector<std::string>& overrides = {}) {
    return load_config(write("run.yaml", fmt::format("model: {{name: m, projectors: {}}}\n"
                                                     "data: {{train: t.jsonl}}\n",
                                                     projectors)),
                       overrides);
  }
};

TEST_F(ProjectorsTest, AreReadAndShownInTheirOrder) {
  const LoadedConfig loaded =
      load_model("{world: {input_width: 1024, hidden: 2048, tokens: 64}, a: {input_width: 8}}");
  const Projectors& projectors = loaded.config.model.projectors;
  ASSERT_EQ(projectors.size(), 2U);
  EXPECT_EQ(projectors[0], (FeatureProjector{"world", 1024, 2048, 64}));
  EXPECT_EQ(projectors[1], (FeatureProjector{"a", 8, 0, 0}));
  const nlohmann::ordered_json json = to_json(loaded.config);
  EXPECT_EQ(json["model"]["projectors"].dump(),
            R"({"world":{"input_width":1024,"hidden":2048,"tokens":64},"a":{"input_width":8}})");
  EXPECT_EQ(to_json(from_json(json)), json);
}

TEST_F(ProjectorsTest, OverridesReachIntoThem) {
  const LoadedConfig loaded =
      load_model("{world: {input_width: 1024}}", {"model.projectors.world.tokens=4"});
  EXPECT_EQ(loaded.config.model.projectors[0], (FeatureProjector{"world", 1024, 0, 4}));
}

TEST_F(ProjectorsTest, ValuesAreChecked) {
  for (const auto& [value, what, fix] : std::vector<std::array<std::string, 3>>{
           {"[world]", "is a list", "input_width"},
           {"{world: 1024}", "is `1024` for world", "{input_width: 1024}"},
           {"{world: {}}", "has no input_width for world", "{input_width: 1024}"},
           {"{world: {hidden: 8}}", "has no input_width for world", "input_width"},
           {"{world: {input_width: 0}}", "the input_width `0` for world", "from 1 to"},
           {"{world: {input_width: wide}}", "the input_width `wide` for world", "whole number"},
           {"{world: {input_width: 8, tokens: -1}}", "the tokens `-1`", "whole number"},
           {"{world: {input_width: 8, depth: 2}}", "the key `depth` for world",
            "input_width, hidden and tokens"},
           {"{a.b: {input_width: 8}}", "has the name `a.b`", "letters"},
           {"{'': {input_width: 8}}", "has the name", "letters"}})
    expect_error<ConfigError>([&] { load_model(value); }, {what, fix});
}

}  // namespace
}  // namespace sftrun::config
