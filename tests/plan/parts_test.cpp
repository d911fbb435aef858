#include "sftrun/plan/parts.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "sftrun/core/file.h"

namespace sftrun::plan {
namespace {

/// A released model's config.json, of scripts/fixtures/make_vision_shapes.py.
spec::ArchSpec arch_of_release(const std::string& name) {
  const std::filesystem::path file =
      std::filesystem::path(SFTRUN_TEST_DATA) / "spec/vision/released" / (name + ".json");
  return spec::ArchSpec::from_hf_config(nlohmann::json::parse(read_text_file(file))["config"],
                                        "config.json");
}

std::string described(const spec::ArchSpec& arch, const config::RunConfig& config,
                      bool has_images = true) {
  const auto use = TowerUse::of(config.tuning, arch, has_images);
  return describe_parts(arch, config, use, part_trained(arch, config.tuning, use));
}

/// Numbers of tower and projector are those of the released files' headers (tower_test.cpp).
TEST(PartsOfAModel, SayWhatTrains) {
  const spec::ArchSpec arch = arch_of_release("gemma-3-4b");
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kLora;
  EXPECT_EQ(described(arch, config),
            "parts: language 3.88B, 29.8M trained (lora); projector 3.0M, frozen; vision 416.9M, "
            "frozen");
  EXPECT_EQ(
      described(arch, config, /*has_images=*/false),
      "parts: language 3.88B, 29.8M trained (lora); the vision tower is not loaded: no record "
      "has an image");
  config.tuning.mode = config::TuningMode::kFull;
  config.tuning.train_parts = config::TrainParts::none();
  config.tuning.train_parts.training[ModelPart::kProjector] = config::PartTraining::kByMode;
  config.train.part_learning_rates[ModelPart::kProjector] = 1e-3;
  EXPECT_EQ(described(arch, config),
            "parts: language 3.88B, frozen; projector 3.0M, 3.0M trained (full) with learning rate "
            "0.001; vision 416.9M, frozen");
}

TEST(PartsOfAModel, HaveTheirOwnWays) {
  const spec::ArchSpec arch = arch_of_release("smolvlm2-2.2b");
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kQlora;
  config.tuning.train_parts.training[ModelPart::kLanguage] = config::PartTraining::kLora;
  config.tuning.train_parts.training[ModelPart::kProjector] = config::PartTraining::kFull;
  const std::string text = described(arch, config);
  EXPECT_NE(
      text.find("trained (lora); projector 21.2M, 21.2M trained (full); vision 413.0M, frozen"),
      std::string::npos)
      << text;
}

TEST(PartsOfAModel, OfTextAloneAreNotNamed) {
  spec::ArchSpec arch = arch_of_release("gemma-3-4b");
  arch.vision.reset();
  EXPECT_EQ(described(arch, {}), "");
}

}  // namespace
}  // namespace sftrun::plan
