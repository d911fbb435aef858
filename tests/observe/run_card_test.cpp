#include "sftrun/observe/run_card.h"

#include <gtest/gtest.h>

#include <map>

#include "sftrun/core/file.h"
#include "support/temporary_directory.h"

namespace sftrun::observe {
namespace {

using Settings = std::map<std::string, std::string>;

Settings settings_of(const ModelCard& card) {
  return {card.settings.begin(), card.settings.end()};
}

TEST(RunCard, OfAnAdapterHasItsSettings) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kQlora;
  config.train.global_batch_size.value = 8;
  config.data.train = {{.path = "owner/data"}};
  config::BaseRecord held{.form = "nf4", .dtype = "bf16", .tuning = config.tuning};
  held.tuning.quant = config::quant_of(QuantFormat::kNf4);
  const ModelCard card = card_of_run(config,
                                     {.base_model = "owner/model",
                                      .base_record = &held,
                                      .trained_steps = 40,
                                      .total_steps = 40,
                                      .dtype = "bf16",
                                      .world_size = 2,
                                      .version = "1.2"},
                                     {.tokens = 7});
  EXPECT_TRUE(card.is_adapter);
  EXPECT_TRUE(card.is_quantised);
  EXPECT_TRUE(card.is_on_hub);
  EXPECT_EQ(card.version, "1.2");
  EXPECT_EQ(card.summary.tokens, 7);
  EXPECT_EQ(card.data, std::vector<std::string>{"owner/data"});
  const Settings settings = settings_of(card);
  EXPECT_EQ(settings.at("tuning.mode"), "qlora");
  EXPECT_EQ(settings.at("tuning.lora.r"), std::to_string(config.tuning.lora.r));
  EXPECT_EQ(settings.at("base precision"), held.words());
  EXPECT_EQ(settings.at("optimizer steps"), "40");
  EXPECT_EQ(settings.at("train.global_batch_size"), "8");
  EXPECT_EQ(settings.at("processes"), "2");
  EXPECT_EQ(settings.at("dtype"), "bf16");
}

TEST(RunCard, HasTheSettingsOfImagesThatAreSet) {
  config::RunConfig config;
  const ResultFacts facts{.base_model = "owner/model", .reads_images = true, .dtype = "fp32"};
  const std::vector<std::string> keys = {"tuning.train_parts", "train.part_learning_rates",
                                         "model.projectors", "data.max_image_pixels",
                                         "data.image_longest_edge"};
  const Settings usual = settings_of(card_of_run(config, facts, {}));
  for (const std::string& key : keys) EXPECT_FALSE(usual.contains(key)) << key;
  config.tuning.train_parts.training[ModelPart::kProjector] = config::PartTraining::kByMode;
  config.train.part_learning_rates[ModelPart::kProjector] = 1e-4;
  config.model.projectors = {{.name = "world", .input_width = 24}};
  config.data.max_image_pixels = 200704, config.data.image_longest_edge = 512;
  const ModelCard card = card_of_run(config, facts, {});
  EXPECT_TRUE(card.reads_images);
  const Settings settings = settings_of(card);
  for (const std::string& key : keys) EXPECT_TRUE(settings.contains(key)) << key;
  EXPECT_EQ(settings.at("data.max_image_pixels"), "200704");
  EXPECT_EQ(settings.at("data.image_longest_edge"), "512");
}

TEST(RunCard, OfAFullModelHasNoAdapterSettings) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kFull;
  const ModelCard card = card_of_run(config, {.base_model = "owner/model", .dtype = "fp32"}, {});
  EXPECT_FALSE(card.is_adapter);
  EXPECT_FALSE(card.is_quantised);
  const Settings settings = settings_of(card);
  EXPECT_FALSE(settings.contains("tuning.lora.r"));
  EXPECT_FALSE(settings.contains("base precision"));
  EXPECT_EQ(settings.at("tuning.mode"), "full");
}

TEST(RunCard, GivesTheStepsThatWereTrained) {
  config::RunConfig config;
  config.train.epochs = 3;
  Settings settings =
      settings_of(card_of_run(config, {.trained_steps = 18, .total_steps = 20, .epochs = 2.7}, {}));
  EXPECT_EQ(settings.at("optimizer steps"), "18 of 20 (2.70 epochs)");  // it stopped early
  EXPECT_EQ(settings.at("train.epochs"), "3.0");
  config.train.max_steps = 10;
  settings = settings_of(
      card_of_run(config, {.trained_steps = 10, .total_steps = 10, .epochs = 10.0 / 12}, {}));
  EXPECT_EQ(settings.at("optimizer steps"), "10 (0.83 epochs)");
  EXPECT_EQ(settings.at("train.max_steps"), "10");
  EXPECT_FALSE(settings.contains("train.epochs"));  // max_steps overrides it
}

TEST(RunCard, NamesTheObjective) {
  config::RunConfig config;
  EXPECT_EQ(settings_of(card_of_run(config, {}, {})).at("data.loss_on"), "assistant");
  for (const config::ObjectiveInfo& objective : config::kObjectives) {
    config.train.objective = objective.objective;
    const std::string tag = "\n- " + std::string(objective.name) + "\n";
    EXPECT_NE(to_markdown(card_of_run(config, {}, {})).find(tag), std::string::npos) << tag;
  }
  config.train.objective = config::Objective::kDpo;
  config.train.beta = config.train.resolved_beta();
  const ModelCard card = card_of_run(config, {}, {});
  EXPECT_EQ(settings_of(card).at("train.objective"), "dpo");
  EXPECT_EQ(settings_of(card).at("train.beta"), "0.1");
  EXPECT_FALSE(settings_of(card).contains("data.loss_on"));
}

/// Paths of this machine are nobody's business: a file's name is enough.
TEST(RunCard, LocalFilesAreNamedWithoutTheirDirectory) {
  const test::TemporaryDirectory directory;
  write_file_atomically(directory / "mine.jsonl", "{}");
  config::RunConfig config;
  config.data.train = {{.path = (directory / "mine.jsonl").string()}};
  const ModelCard card = card_of_run(config, {.base_model = directory.path().string()}, {});
  EXPECT_FALSE(card.is_on_hub);
  EXPECT_EQ(card.data, std::vector<std::string>{"mine.jsonl"});
}

}  // namespace
}  // namespace sftrun::observe
