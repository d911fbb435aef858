#include "sftrun/config/train_parts.h"

#include "config_test_base.h"
#include "sftrun/config/setting_differences.h"
#include "support/expect_error.h"

namespace sftrun::config {
namespace {

using Json = nlohmann::ordered_json;
using test::expect_error;

class TrainPartsTest : public ConfigTest {
 protected:
  /// As the resolved configuration has it.
  RunConfig resolved(const std::string& text, const std::vector<std::string>& overrides = {}) {
    LoadedConfig loaded = load(text, overrides);
    resolve(loaded, "run.yaml", 1);
    return loaded.config;
  }
  std::string shown(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return to_json(resolved(text, overrides))["tuning"]["train_parts"].dump();
  }
};

TEST_F(TrainPartsTest, OnlyTheLanguagePartTrainsByDefault) {
  for (const char* mode : {"lora", "qlora", "full"}) {
    const RunConfig run = resolved(fmt::format("tuning: {{mode: {}}}\n", mode));
    EXPECT_EQ(run.tuning.train_parts.trained(), TrainedParts::text()) << mode;
    EXPECT_FALSE(run.tuning.full_parts().any()) << mode;
  }
  EXPECT_EQ(shown("tuning: {train_parts: }\n"), R"(["language"])");
}

TEST_F(TrainPartsTest, AListTrainsAsTheModeSays) {
  const RunConfig run = resolved("tuning: {train_parts: [vision, projector]}\n");
  EXPECT_EQ(run.tuning.train_parts.trained(),
            (TrainedParts{.language = false, .projector = true, .vision = true}));
  EXPECT_FALSE(run.tuning.full_parts().any());
  EXPECT_EQ(shown("tuning: {train_parts: [vision, projector]}\n"), R"(["projector","vision"])");
  EXPECT_EQ(shown("tuning: {train_parts: vision}\n"), R"(["vision"])");
}

TEST_F(TrainPartsTest, AMapMixesLoraAndFull) {
  const std::string text =
      "tuning: {train_parts: {vision: qlora, language: lora, projector: full}}\n";
  EXPECT_EQ(shown(text), R"({"language":"lora","projector":"full","vision":"lora"})");
  EXPECT_EQ(resolved(text).tuning.full_parts(),
            (TrainedParts{.language = false, .projector = true, .vision = false}));
  const RunConfig run = resolved(text);
  EXPECT_EQ(to_json(from_json(to_json(run))), to_json(run));
}

/// A map in which all parts train as the mode says is the list of these parts: one run, one identity.
TEST_F(TrainPartsTest, AMapWithoutAMixtureIsAList) {
  EXPECT_EQ(shown("tuning: {train_parts: {vision: lora, language: qlora}}\n"),
            R"(["language","vision"])");
  EXPECT_EQ(shown("tuning: {mode: full, train_parts: {projector: full}}\n"), R"(["projector"])");
}

TEST_F(TrainPartsTest, OverridesReplaceTheWholeValue) {
  EXPECT_EQ(shown("", {"tuning.train_parts=[vision]"}), R"(["vision"])");
  EXPECT_EQ(shown("", {"tuning.train_parts={language: lora, projector: full}"}),
            R"({"language":"lora","projector":"full"})");
  EXPECT_EQ(shown("tuning: {train_parts: {language: lora, projector: full}}\n",
                  {"tuning.train_parts.vision=lora"}),
            R"({"language":"lora","projector":"full","vision":"lora"})");
  expect_error<ConfigError>([&] { load("", {"tuning.train_parts.vision=lora"}); },
                            {"a value that is not a map", "set all of tuning.train_parts"});
}

TEST_F(TrainPartsTest, ValuesAreChecked) {
  for (const auto& [value, what, fix] : std::vector<std::array<std::string, 3>>{
           {"[]", "names no part", "[language]"},
           {"{}", "names no part", "[language]"},
           {"[vison]", "has the part `vison`", "did you mean `vision`?"},
           {"[attention]", "has the part `attention`", "language, projector and vision"},
           {"[tower]", "has the part `tower`", "write `vision`, which `tower` is here"},
           {"[visual.merger]", "has the part `visual.merger`", "write `projector`"},
           {"{mlp1: full}", "has the part `mlp1`", "write `projector`"},
           {"llm", "has the part `llm`", "write `language`"},
           {"all", "has the part `all`", "[language, projector, vision]"},
           {"[vision, language, vision]", "names vision twice", "once"},
           {"{vision: half}", "is `half` for vision", "lora or full"},
           {"{vision: partial}", "is `partial` for vision", "lora or full"},
           {"{vision: }", "for vision", "lora or full"},
           {"[[vision]]", "has an item that is a list", ""}})
    expect_error<ConfigError>([&] { load("tuning: {train_parts: " + value + "}\n"); }, {what, fix});
}

TEST_F(TrainPartsTest, ModesThatContradictAreRefused) {
  for (const auto& [tuning, what, fix] : std::vector<std::array<std::string, 3>>{
           {"mode: full, train_parts: {language: lora, projector: full}",
            "trains a part with LoRA, but `tuning.mode` is full", "[language, projector]"},
           {"mode: partial, trainable: [norm], train_parts: {vision: full}", "is a map",
            "write the parts as a list: [vision]"},
           {"mode: lora, train_parts: {language: full, vision: lora}",
            "trains the language part in full", "set tuning.mode to full"},
           {"mode: qlora, train_parts: {projector: full}", "trains no part with LoRA",
            "set tuning.mode to full, with train_parts: [projector]"}})
    expect_error<ConfigError>([&] { load("tuning: {" + tuning + "}\n"); }, {what, fix});
  expect_error<ConfigError>(
      [&] {
        load("tuning: {train_parts: {language: lora, projector: full}}\n",
             {"train.objective=dpo", "train.reference=base"});
      },
      {"`tuning.train_parts` trains a part in full", "set train.reference to start"});
  EXPECT_EQ(shown("tuning: {mode: partial, trainable: [norm], train_parts: [vision]}\n"),
            R"(["vision"])");
}

TEST_F(TrainPartsTest, APartMayHaveItsRate) {
  const std::string text =
      "tuning: {train_parts: [language, vision, projector]}\n"
      "train: {part_learning_rates: {vision: 2e-6, projector: 1e-4}}\n";
  const RunConfig run = resolved(text);
  EXPECT_EQ(run.train.part_learning_rates[ModelPart::kVision], 2e-6);
  EXPECT_EQ(run.train.part_learning_rates[ModelPart::kProjector], 1e-4);
  EXPECT_FALSE(run.train.part_learning_rates[ModelPart::kLanguage]);
  EXPECT_EQ(to_json(run)["train"]["part_learning_rates"].dump(),
            R"({"projector":0.0001,"vision":2e-06})");
  EXPECT_EQ(to_json(from_json(to_json(run))), to_json(run));
  EXPECT_EQ(resolved(text, {"train.part_learning_rates.vision=1e-3"})
                .train.part_learning_rates[ModelPart::kVision],
            1e-3);
  expect_error<ConfigError>([&] { load(text, {"train.part_learning_rates.vision=fast"}); },
                            {"is `fast` for vision"});
}

TEST_F(TrainPartsTest, RatesWithoutAPartAreRefused) {
  const auto refused = [&](const std::string& tuning, const std::string& train,
                           std::initializer_list<std::string> parts) {
    expect_error<ConfigError>([&] { load("tuning: {" + tuning + "}\ntrain: {" + train + "}\n"); },
                              parts);
  };
  refused("train_parts: [language]", "part_learning_rates: {vision: 1e-5}",
          {"has a rate for vision, which does not train", "add vision to tuning.train_parts"});
  refused("", "part_learning_rates: {language: 1e-5}",
          {"has a rate for language", "set train.learning_rate: 1e-05"});
  refused("", "part_learning_rates: {tower: 1e-5}", {"has the part `tower`", "write `vision`"});
  refused("", "part_learning_rates: {all: 1e-5}", {"train.learning_rate is the rate of all"});
  refused("", "part_learning_rates: {vision: 2}", {"is `2` for vision", "from 0 to 1"});
  refused("train_parts: [vision]", "learning_rate: 0, part_learning_rates: {vision: 1e-5}",
          {"cannot be used with a `train.learning_rate` of 0"});
}

TEST_F(TrainPartsTest, OtherPartsAreAnotherRun) {
  const auto differences = [&](const std::string& was, const std::string& is) {
    return setting_differences(identity_settings(resolved(was)), identity_settings(resolved(is)),
                               false);
  };
  const std::string list = "tuning: {train_parts: [language, projector]}\n",
                    map = "tuning: {train_parts: {language: lora, projector: full}}\n";
  EXPECT_TRUE(
      differences(list, "tuning: {train_parts: {projector: lora, language: lora}}\n").empty());
  EXPECT_EQ(differences("", list).size(), 1U);
  EXPECT_EQ(differences(list, map),
            std::vector<std::string>{R"(tuning.train_parts was ["language","projector"], is now )"
                                     R"({"language":"lora","projector":"full"})"});
  EXPECT_FALSE(differences(map, list).empty());
  EXPECT_FALSE(differences(map,
                           "tuning: {train_parts: {language: lora, projector: full, vision: "
                           "full}}\n")
                   .empty());
  EXPECT_FALSE(
      differences(list, list + "train: {part_learning_rates: {projector: 1e-5}}\n").empty());
  // A checkpoint of a version without these settings.
  Json before = identity_settings(resolved(""));
  before.erase("tuning.train_parts"), before.erase("train.part_learning_rates");
  EXPECT_TRUE(setting_differences(before, identity_settings(resolved("")), false).empty());
  EXPECT_FALSE(setting_differences(before, identity_settings(resolved(map)), false).empty());
}

}  // namespace
}  // namespace sftrun::config
