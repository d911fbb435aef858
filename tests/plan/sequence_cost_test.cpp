#include "sftrun/plan/sequence_cost.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "sftrun/core/file.h"

namespace sftrun::plan {
namespace {

spec::ArchSpec shape_of(const std::string& name) {
  const std::filesystem::path file =
      std::filesystem::path(SFTRUN_TEST_DATA) / "spec/vision/released" / (name + ".json");
  return spec::ArchSpec::from_hf_config(nlohmann::json::parse(read_text_file(file))["config"],
                                        "config.json");
}

SequenceCost cost_of(const spec::ArchSpec& arch, const config::RunConfig& config) {
  return {arch, config, TowerUse::of(config.tuning, arch, /*has_images=*/true)};
}

config::RunConfig tuned(config::TuningMode mode, config::TrainParts parts = {}) {
  config::RunConfig config;
  config.tuning.mode = mode;
  config.tuning.train_parts = parts;
  return config;
}

/// 2.2 billion parameters: a SigLIP tower of 27 layers, 1152 wide, and a text model of 24 layers, 2048 wide.
TEST(SequenceCost, OfSmolVlm2) {
  const spec::ArchSpec arch = shape_of("smolvlm2-2.2b");
  const SequenceCost cost = cost_of(arch, tuned(config::TuningMode::kLora));
  const int64_t patches = 729, layer = 4 * 1152 * 1152 + 2 * 1152 * 4304;
  const int64_t per_patch = 3 * 14 * 14 * 1152 + 27 * layer + 9 * 1152 * 2048 / 9;
  const int64_t per_pair = 27 * 2 * 1152;
  EXPECT_NEAR(static_cast<double>(cost.of_tile(patches)),
              static_cast<double>(patches * (per_patch + patches * per_pair)) / 1000, 1000)
      << "it is frozen: a forward pass";
  const int64_t text_layer = 4 * 2048 * 2048 + 3 * 2048 * 8192;
  EXPECT_NEAR(static_cast<double>(cost.of_document(1000, 0)),
              2 * 24 * static_cast<double>(text_layer) + 24 * 3.5 * 2048 * 1000, 1000)
      << "LoRA: forward and through it; attention 1 + 2.5 times";
  EXPECT_EQ(cost.of_document(1000, 10) - cost.of_document(1000, 0),
            10 * 2 * arch.vocab_size * 2048 / 1000);
}

TEST(SequenceCost, DependsOnWhatTrains) {
  using config::PartTraining, config::TuningMode;
  const spec::ArchSpec arch = shape_of("gemma-3-4b");
  config::TrainParts all, projector = config::TrainParts::none();
  for (const ModelPart part : {ModelPart::kProjector, ModelPart::kVision})
    all.training[part] = PartTraining::kByMode;
  projector.training[ModelPart::kProjector] = PartTraining::kByMode;
  const auto tile = [&](const config::RunConfig& config) {
    return static_cast<double>(cost_of(arch, config).of_tile(4096));
  };
  const auto text = [&](const config::RunConfig& config) {
    return static_cast<double>(cost_of(arch, config).of_document(100, 0));
  };
  const double frozen = tile(tuned(TuningMode::kLora)), lora = tile(tuned(TuningMode::kLora, all)),
               full = tile(tuned(TuningMode::kFull, all));
  EXPECT_GT(lora, 1.9 * frozen);
  EXPECT_LT(lora, 3 * frozen);
  EXPECT_GT(full, lora + 0.3 * frozen);
  EXPECT_NEAR(tile(tuned(TuningMode::kFull, projector)), frozen, 0.01 * frozen)
      << "a small part of it, at its end";
  EXPECT_GT(text(tuned(TuningMode::kFull, all)), 1.4 * text(tuned(TuningMode::kLora, all)));
  EXPECT_EQ(text(tuned(TuningMode::kFull, projector)), text(tuned(TuningMode::kLora)))
      << "gradients pass through a frozen text model";
  config::RunConfig again = tuned(TuningMode::kLora);
  again.train.gradient_checkpointing = config::Checkpointing::kLayer;
  EXPECT_EQ(tile(again), frozen) << "nothing of it is kept";
  EXPECT_GT(text(again), 1.4 * text(tuned(TuningMode::kLora)));
  EXPECT_EQ(SequenceCost(arch, again, {}).of_tile(4096), 0) << "a run of texts";
}

/// Qwen2.5-VL: 28 of 32 layers attend to windows of 8 x 8 patches.
TEST(SequenceCost, OfWindows) {
  const spec::ArchSpec arch = shape_of("qwen2.5-vl-7b");
  spec::ArchSpec whole = arch;
  whole.vision->window_side = 0;
  const config::RunConfig config = tuned(config::TuningMode::kLora);
  const SequenceCost cost = cost_of(arch, config), of_whole = cost_of(whole, config);
  EXPECT_EQ(cost.of_tile(64), of_whole.of_tile(64));
  const int64_t pairs = 4096 * (4096 - 64), per_pair = 28 * 2 * 1280;
  EXPECT_NEAR(static_cast<double>(of_whole.of_tile(4096) - cost.of_tile(4096)),
              static_cast<double>(pairs) * per_pair / 1000, 10000);
}

}  // namespace
}  // namespace sftrun::plan
