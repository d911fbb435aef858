#include "sftrun/plan/tower.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "sftrun/core/file.h"
#include "sftrun/plan/memory_plan.h"

namespace sftrun::plan {
namespace {

/// A released model's config.json, of scripts/fixtures/make_vision_shapes.py.
spec::ArchSpec released(const std::string& name) {
  const std::filesystem::path file =
      std::filesystem::path(SFTRUN_TEST_DATA) / "spec/vision/released" / (name + ".json");
  return spec::ArchSpec::from_hf_config(nlohmann::json::parse(read_text_file(file))["config"],
                                        "config.json");
}

config::RunConfig run_of(config::TuningMode mode) {
  config::RunConfig config;
  config.model.dtype = config::DTypeChoice::kBf16;
  config.tuning.mode = mode;
  config.tuning.quant = mode == config::TuningMode::kQlora ? config::quant_of(QuantFormat::kNf4)
                                                           : config::Quant::kNone;
  config.train.batch_size.value = 2, config.train.grad_accum.value = 4;
  config.parallel.strategy = config::Strategy::kSingle;
  return config;
}

constexpr TowerUse kFrozenTower{.is_loaded = true};
constexpr TowerUse kTrainedTower{.is_loaded = true,
                                 .parts = {.language = false, .projector = true, .vision = true}};

StaticMemory held_with(const spec::ArchSpec& arch, const config::RunConfig& config,
                       const TowerUse& tower) {
  return static_memory(arch, config, 2, {}, {.on_gpu = true, .tower = tower});
}

struct ReleasedTower {
  const char* name;
  int64_t values;  ///< of tower and projector, by the files' headers
};
constexpr ReleasedTower kReleasedTowers[] = {{"gemma-3-4b", 416'866'032 + 2'950'272},
                                             {"qwen2.5-vl-7b", 676'550'144},
                                             {"smolvlm2-2.2b", 412'987'248 + 21'233'664}};

TEST(TowerPlan, WeightsAreThoseOfReleasedModels) {
  for (const auto& [name, values] : kReleasedTowers) {
    const spec::ArchSpec arch = released(name);
    const config::RunConfig lora = run_of(config::TuningMode::kLora);
    EXPECT_EQ(held_with(arch, lora, kFrozenTower).base - held_with(arch, lora, {}).base, 2 * values)
        << name;
    // Every value is trained: a master, a copy, a gradient and two moments.
    const StaticMemory full = held_with(arch, run_of(config::TuningMode::kFull), kTrainedTower);
    EXPECT_EQ(full.trainable, 6 * values) << name;
    EXPECT_EQ(full.gradients, 4 * values) << name;
    EXPECT_EQ(full.optimizer, 8 * values) << name;
    EXPECT_EQ(full.base, held_with(arch, lora, {}).base) << "the text model is frozen: " << name;
  }
}

TEST(TowerPlan, LinearModulesAreQuantised) {
  const spec::ArchSpec arch = released("qwen2.5-vl-7b");
  config::RunConfig config = run_of(config::TuningMode::kQlora);
  const auto of_tower = [&] {
    return held_with(arch, config, kFrozenTower).base - held_with(arch, config, {}).base;
  };
  // Four bits and a factor for 64 values: about 0.52 bytes a value; the patches' kernel is no linear module.
  const int64_t kernel = 1280 * 3 * 2 * 14 * 14, linears = 676'550'144 - kernel;
  EXPECT_GT(of_tower(), 2 * kernel + linears * 51 / 100);
  EXPECT_LT(of_tower(), 2 * kernel + linears * 54 / 100);
  config.tuning.skip_modules = {"visual"};
  EXPECT_EQ(of_tower(), 2 * int64_t{676'550'144});
}

/// A layer that nothing reads is not loaded.
TEST(TowerPlan, LayersThatAreNotReadAreLeftOut) {
  const spec::ArchSpec arch = released("llava-1.5-7b");
  ASSERT_EQ(arch.vision->num_used_layers, arch.vision->num_layers - 1);
  for (const spec::TensorSpec& tensor : tower_tensors(arch)) {
    EXPECT_EQ(tensor.name.find("layers.23."), std::string::npos) << tensor.name;
    EXPECT_EQ(tensor.name.find("post_layernorm"), std::string::npos) << tensor.name;
    EXPECT_LT(tower_unit_of(arch, tensor), num_tower_units(arch, kFrozenTower));
  }
}

TEST(TowerPlan, AdaptersAreOfThePartsThatTrain) {
  const spec::ArchSpec arch = released("gemma-3-4b");
  const config::RunConfig config = run_of(config::TuningMode::kLora);
  const StaticMemory text = held_with(arch, config, {}),
                     frozen = held_with(arch, config, kFrozenTower),
                     tower = held_with(arch, config, kTrainedTower);
  EXPECT_EQ(frozen.gradients, text.gradients);
  // q, k, v and the output, up and down of 27 layers; the projector is no linear module.
  EXPECT_EQ(tower.gradients, 4 * 27 * 16 * (4 * 2 * 1152 + 2 * (1152 + 4304)));
  TowerUse both = kTrainedTower;
  both.parts.language = true;
  EXPECT_EQ(held_with(arch, config, both).gradients, text.gradients + tower.gradients);
}

TEST(TowerPlan, UnitsAreDividedAsThoseOfTheText) {
  const spec::ArchSpec arch = released("qwen2.5-vl-7b");
  config::RunConfig config = run_of(config::TuningMode::kFull);
  TowerUse all = kTrainedTower;
  all.parts.language = true;
  const StaticMemory whole = held_with(arch, config, all);
  config.parallel.strategy = config::Strategy::kFsdp;
  config::resolve_axes(config.parallel, 4, 4);
  EXPECT_NEAR(static_cast<double>(held_with(arch, config, all).optimizer),
              static_cast<double>(whole.optimizer) / 4, 8);
  EXPECT_EQ(held_with(arch, config, all).gathered, held_with(arch, config, {}).gathered)
      << "the largest units are the text's";
  // The first stage has the tower.
  config.parallel.strategy = config::Strategy::kPipeline;
  config::resolve_axes(config.parallel, 2, 2);
  const auto stage = [&](const TowerUse& use) {
    return static_cast<double>(held_with(arch, config, use).total());
  };
  EXPECT_NEAR(stage(all) - stage({}), 18.0 * 676'550'144, 0.05 * 18 * 676'550'144);
  const std::vector<double> units =
      unit_bytes(arch, run_of(config::TuningMode::kFull), 2, {}, {.on_gpu = true, .tower = all});
  EXPECT_EQ(units.size(), static_cast<size_t>(arch.num_layers) + 2);
}

StepMemory step_with(const spec::ArchSpec& arch, const config::RunConfig& config,
                     const TowerUse& tower, int64_t patches = 8192) {
  return step_memory(arch, config,
                     {.tokens = 4096,
                      .element_bytes = 2,
                      .on_gpu = true,
                      .tower = tower,
                      .images = {.tiles = 2, .patches = patches, .longest_tile = patches / 2}});
}

TEST(TowerPlan, AFrozenTowerKeepsNothing) {
  const spec::ArchSpec arch = released("qwen2.5-vl-7b");
  config::RunConfig config = run_of(config::TuningMode::kLora);
  config.train.gradient_checkpointing = config::Checkpointing::kNone;
  const StepMemory text = step_memory(arch, config, {4096, 2, true}),
                   frozen = step_with(arch, config, kFrozenTower);
  EXPECT_EQ(frozen.tower_kept, 0);
  EXPECT_EQ(frozen.kept, text.kept);
  // Patches in fp32, angles of 80 channels, places, and a row of the text for four patches.
  EXPECT_EQ(frozen.images,
            8192 * (4 * 1176 + 2 * 4 * 80) + 8 * 8192 / 4 + 2 * int64_t{8192} / 4 * 3584);
  EXPECT_EQ(frozen.peak() - text.peak(), frozen.images) << "its peak is before the text's";
  EXPECT_EQ(step_with(arch, config, kFrozenTower, 0).peak(), text.peak()) << "no image";
}

TEST(TowerPlan, ATrainedTowerKeepsItsGraph) {
  const spec::ArchSpec arch = released("qwen2.5-vl-7b");
  config::RunConfig config = run_of(config::TuningMode::kLora);
  config.train.gradient_checkpointing = config::Checkpointing::kNone;
  const StepMemory graph = step_with(arch, config, kTrainedTower);
  config.train.gradient_checkpointing = config::Checkpointing::kLayer;
  const StepMemory inputs = step_with(arch, config, kTrainedTower);
  EXPECT_EQ(inputs.tower_kept, 33 * int64_t{8192} * 1280 * 2) << "32 layers and the mergers";
  EXPECT_GT(graph.tower_kept, 10 * inputs.tower_kept);
  // The projector alone has no graph of the tower.
  const TowerUse projector{.is_loaded = true,
                           .parts = {.language = true, .projector = true, .vision = false}};
  EXPECT_EQ(step_with(arch, config, projector).tower_kept, int64_t{8192} * 1280 * 2);
}

TEST(TowerPlan, PlansFollowTheImagesOfAMicroBatch) {
  const spec::ArchSpec arch = released("gemma-3-4b");
  const config::RunConfig config = run_of(config::TuningMode::kQlora);
  RunDevices devices{.memory_bytes = uint64_t{240} << 30,
                     .element_bytes = 2,
                     .on_gpu = true,
                     .tower = kFrozenTower,
                     .images = {.tiles = 1.5, .patches = 6144, .longest_tile = 4096}};
  const ImageShape images = micro_batch_shape(config, devices).images;
  EXPECT_EQ(images.tiles, 3);
  EXPECT_EQ(images.patches, 2 * 6144);
  EXPECT_EQ(images.longest_tile, 4096);
  EXPECT_EQ(ImagesOfBin::of(images, 2).times(4).patches, 4 * 6144);
  const auto memory = static_cast<int64_t>(devices.memory_bytes);
  const int64_t with_images = largest_batch_size(arch, config, devices, {}, memory);
  devices.tower = {}, devices.images = {};
  EXPECT_LT(with_images, largest_batch_size(arch, config, devices, {}, memory));
}

}  // namespace
}  // namespace sftrun::plan
