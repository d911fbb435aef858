#include "sftrun/plan/device_map.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/micro_batch.h"
#include "support/expect_error.h"

namespace sftrun::plan {
namespace {

/// Four layers, each as large as the embedding and as the head.
spec::ArchSpec four_layers() {
  spec::ArchSpec arch;
  arch.family = "llama";
  arch.vocab_size = 512, arch.hidden_size = 128, arch.intermediate_size = 0;
  arch.num_layers = 4;
  arch.layers.resize(4);
  arch.num_heads = 1, arch.num_kv_heads = 1, arch.head_dim = 128;
  return arch;
}

config::ParallelConfig rule(const char* name) {
  config::ParallelConfig parallel;
  parallel.device_map = config::DeviceMap{.rule = name};
  return parallel;
}

config::ParallelConfig custom(nlohmann::ordered_json places) {
  config::ParallelConfig parallel;
  parallel.device_map = config::DeviceMap{.rule = "", .places = std::move(places)};
  return parallel;
}

/// "0,1,2: a b": the first units of stages, then their devices
std::string text_of(const DeviceStages& stages) {
  std::string text;
  for (size_t i = 0; i < stages.devices.size(); ++i)
    text += fmt::format("{}{}@{}", i == 0 ? "" : " ", stages.firsts[i], stages.devices[i]);
  return text;
}

std::string placed(const config::ParallelConfig& parallel, MapDevices devices) {
  if (devices.unit_bytes.empty()) devices.unit_bytes.assign(6, 1.0);
  return text_of(place_units(four_layers(), parallel, devices, "run.yaml:3:5"));
}

TEST(DeviceMap, BalancedDividesBytes) {
  EXPECT_EQ(placed(rule("balanced"), {.num_gpus = 2}), "0@0 3@1");
  EXPECT_EQ(placed(rule("auto"), {.num_gpus = 3}), "0@0 2@1 4@2");
  EXPECT_EQ(placed(rule("auto"), {.num_gpus = 1}), "0@0");
  EXPECT_EQ(placed(rule("auto"), {.num_gpus = 9}), "0@0 1@1 2@2 3@3 4@4 5@5");
  config::ParallelConfig two_of_four = rule("balanced");
  two_of_four.pp = 2;
  EXPECT_EQ(placed(two_of_four, {.num_gpus = 4}), "0@0 3@1");
  EXPECT_EQ(placed(two_of_four, {}), "0@cpu:0 3@cpu:1");
}

/// An embedding in bf16 beside layers in 4 bits has four times the bytes of as many values in them.
TEST(DeviceMap, BytesAreDividedAndNotValues) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kQlora;
  config.tuning.quant = config::quant_of(QuantFormat::kNf4);
  config.tuning.lora.r = 1;
  spec::ArchSpec arch = four_layers();
  arch.vocab_size = 2048, arch.intermediate_size = 128;
  const std::vector<double> bytes = unit_bytes(arch, config, /*element_bytes=*/2);
  ASSERT_EQ(bytes.size(), 6U);
  EXPECT_EQ(bytes.front(), 2048 * 128 * 2);
  EXPECT_GT(bytes.front(), 2 * bytes[1]);
  EXPECT_EQ(placed(rule("balanced"), {.num_gpus = 3, .unit_bytes = bytes}), "0@0 1@1 5@2");
  EXPECT_EQ(placed(rule("sequential"),
                   {.num_gpus = 2, .unit_bytes = bytes, .device_bytes = bytes[0] + 2 * bytes[1]}),
            "0@0 3@1");
  double sum = 0;
  for (const double of_unit : bytes) sum += of_unit;
  EXPECT_NEAR(static_cast<double>(static_bytes(arch, config, 2)), sum, 16);
}

TEST(DeviceMap, TheNameForTheFewestLayersCounts) {
  // The range has the longer name.
  const nlohmann::ordered_json places = {
      {"embedding", "0"}, {"layers.0-3", "0"}, {"layers.3", "1"}, {"head", "1"}};
  EXPECT_EQ(placed(custom(places), {.num_gpus = 2}), "0@0 4@1");
  EXPECT_EQ(placed(custom({{"", "0"}, {"lm_head", "1"}}), {.num_gpus = 2}), "0@0 5@1");
}

TEST(DeviceMap, SequentialFillsTheFirstDevices) {
  const auto filled = [](double units_per_device, int64_t gpus) {
    return placed(rule("sequential"), {.num_gpus = gpus, .device_bytes = units_per_device});
  };
  EXPECT_EQ(filled(4.1, 4), "0@0 4@1");
  EXPECT_EQ(filled(2.1, 4), "0@0 2@1 4@2");
  EXPECT_EQ(filled(100, 4), "0@0");
  EXPECT_EQ(filled(1.1, 2), "0@0 1@1") << "the last device has the rest";
}

TEST(DeviceMap, NamesOfTransformersAndRanges) {
  const MapDevices two{.num_gpus = 2};
  const nlohmann::ordered_json hf = {{"model.embed_tokens", "0"},  {"model.layers.0", "0"},
                                     {"model.layers.1", "cuda:0"}, {"model.layers.2", "cuda:1"},
                                     {"model.layers.3", "1"},      {"model.norm", "1"},
                                     {"model.rotary_emb", "1"},    {"lm_head", "1"}};
  EXPECT_EQ(placed(custom(hf), two), "0@0 3@1");
  EXPECT_EQ(
      placed(custom({{"embedding", "1"}, {"layers.0-2", "1"}, {"layers.3", "0"}, {"head", "0"}}),
             two),
      "0@1 4@0");
  EXPECT_EQ(placed(custom({{"", "1"}}), two), "0@1");
  EXPECT_EQ(placed(custom({{"model", "0"}, {"lm_head", "1"}, {"model.norm", "1"}}), two),
            "0@0 5@1");
  const auto parallel = custom(hf);
  const DeviceStages stages = place_units(four_layers(), parallel, two, {});
  config::ParallelConfig resolved;
  resolved.device_map = as_places(stages, four_layers());
  EXPECT_EQ(text_of(device_stages(four_layers(), resolved)), text_of(stages));
}

TEST(DeviceMap, BadMapsAreRefused) {
  const auto refusal = [](const nlohmann::ordered_json& places, int64_t gpus) {
    return test::error_of<ConfigError>([&] { placed(custom(places), {.num_gpus = gpus}); });
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refusal({{"", "0"}, {"model.layer.1", "1"}}, 2), "did you mean `model.layers.1`?");
  has(refusal({{"", "0"}, {"model.layers.4", "1"}}, 2),
      "`model.layers.4`, which the model does not have");
  has(refusal({{"", "0"}, {"model.layers.1.mlp", "1"}}, 2), "a part of a layer");
  has(refusal({{"model.layers.0-3", "0"}, {"lm_head", "1"}}, 2), "has no device for embedding");
  has(refusal({{"", "0"}, {"model.norm", "0"}, {"lm_head", "1"}}, 2), "they are one unit");
  has(refusal({{"", "0"}, {"layers.0-1", "0"}, {"layers.1-2", "1"}}, 2),
      "`layers.0-1` on device 0 and `layers.1-2` on device 1; both name layers.1");
  has(refusal({{"", "2"}}, 2), "names GPU 2, and this run has GPUs 0 to 1");
  has(refusal({{"", "0"}}, 0), "names GPU 0, and this run has none");
  has(refusal({{"", "0"}, {"lm_head", "cpu"}, {"model.norm", "cpu"}}, 2), "on the CPU");
  has(refusal({{"", "0"}, {"model.layers.1", "1"}}, 2), "returns to device 0 with layers.2");
}

}  // namespace
}  // namespace sftrun::plan
