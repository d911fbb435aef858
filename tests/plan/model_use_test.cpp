#include "sftrun/plan/model_use.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/llama_shapes.h"

namespace sftrun::plan {
namespace {

constexpr double kBytesOfOneGiB = 1 << 30;

/// Llama 3 70B's shape: 131 GiB in bf16.
ModelFiles used_model() {
  ModelFiles files;
  files.arch = test::llama_70b();
  return files;
}

ModelUse of_records() {
  ModelUse use{.sequences = {.rows = 8, .tokens = 1280, .prompt_tokens = 1024, .element_bytes = 2}};
  use.tuning.quant = config::Quant::kAuto;
  return use;
}

ModelUse one_prompt() {
  ModelUse use = of_records();
  use.has_one_copy = true;
  use.sequences.rows = 1;
  return use;
}

UseDevices used_cards(int64_t count, double gib) {
  return {.memory_bytes = static_cast<uint64_t>(gib * kBytesOfOneGiB),
          .element_bytes = 2,
          .on_gpu = true,
          .count = count};
}

std::string chosen(const ModelFiles& files, const ModelUse& use, const UseDevices& devices,
                   const config::Axes* hint = nullptr) {
  const auto choice = choose_division(files, use, devices, hint);
  if (!choice) return "none";
  if (!choice->division.divides()) return choice->fits ? "whole" : "whole, which does not fit";
  return choice->division.flags() + (choice->fits ? "" : ", which does not fit");
}

TEST(ModelUse, IsWholeWhereItFits) {
  EXPECT_EQ(chosen(used_model(), of_records(), used_cards(4, 160)), "whole");
  EXPECT_EQ(chosen(used_model(), one_prompt(), used_cards(4, 160)), "whole");
  EXPECT_EQ(choose_division(used_model(), of_records(), used_cards(4, 160))->division.processes, 4);
}

TEST(ModelUse, IsDividedOverAsFewDevicesAsItNeeds) {
  EXPECT_EQ(chosen(used_model(), one_prompt(), used_cards(8, 80)),
            "--strategy tensor --tp 2 --nproc-per-node 2");
  EXPECT_EQ(chosen(used_model(), one_prompt(), used_cards(8, 24)),
            "--strategy tensor --tp 8 --nproc-per-node 8");
  // Copies share the records.
  EXPECT_EQ(chosen(used_model(), of_records(), used_cards(8, 80)),
            "--strategy tensor --tp 2 --nproc-per-node 8");
}

TEST(ModelUse, HasTheProcessesThatWereAskedFor) {
  UseDevices devices = used_cards(8, 80);
  devices.processes = 4;
  EXPECT_EQ(chosen(used_model(), one_prompt(), devices),
            "--strategy tensor --tp 4 --nproc-per-node 4");
  EXPECT_EQ(chosen(used_model(), of_records(), devices),
            "--strategy tensor --tp 2 --nproc-per-node 4");
  devices.processes = 1;
  EXPECT_EQ(chosen(used_model(), of_records(), devices), "--strategy device_map --pp 2");
}

TEST(ModelUse, HasStagesWhereItsMatricesCannotBeDivided) {
  ModelFiles files = used_model();
  files.arch.qk_norm = spec::QkNorm::kWhole;
  EXPECT_EQ(chosen(files, one_prompt(), used_cards(4, 80)), "--strategy device_map --pp 2");
  EXPECT_EQ(chosen(files, of_records(), used_cards(4, 80)),
            "--strategy pipeline --pp 2 --nproc-per-node 4");
}

TEST(ModelUse, OfBlocksThatDoNotDivideHasStages) {
  ModelFiles files = used_model();
  for (int64_t layer = 0; layer < files.arch.num_layers; ++layer) {
    const std::string name = spec::name_in_layer(files.arch, layer, "self_attn.o_proj") + ".weight";
    files.stored[name] = 8192 * 8192 / 2, files.blocks[name] = 8192;
  }
  EXPECT_EQ(chosen(files, one_prompt(), used_cards(4, 80)), "--strategy device_map --pp 2");
}

TEST(ModelUse, IsShardedWhereNothingElseDividesIt) {
  ModelFiles files = used_model();
  files.arch.qk_norm = spec::QkNorm::kWhole;
  files.arch.layers.back().keys_of = 78;
  EXPECT_EQ(chosen(files, of_records(), used_cards(4, 80)), "--strategy fsdp --nproc-per-node 4");
  EXPECT_EQ(chosen(files, one_prompt(), used_cards(4, 80)), "whole, which does not fit");
  UseDevices four = used_cards(4, 80);
  four.processes = 4;
  EXPECT_EQ(chosen(files, one_prompt(), four), "none");
}

TEST(ModelUse, OfARunIsDividedAsTheRunWasWhereThatFits) {
  const config::Axes pipeline{.pp = 4}, small{.pp = 2};
  EXPECT_EQ(chosen(used_model(), of_records(), used_cards(4, 80), &pipeline),
            "--strategy pipeline --pp 4 --nproc-per-node 4");
  EXPECT_EQ(chosen(used_model(), of_records(), used_cards(4, 160), &pipeline), "whole");
  EXPECT_EQ(chosen(used_model(), of_records(), used_cards(4, 40), &small),
            "--strategy tensor --tp 4 --nproc-per-node 4");
}

TEST(ModelUse, OnAMachineOfSeveralHasItsMatricesInOne) {
  UseDevices devices = used_cards(4, 40);
  devices.processes = 4, devices.of_machine = 2;
  EXPECT_EQ(chosen(used_model(), one_prompt(), devices), "--tp 2 --pp 2 --nproc-per-node 4");
}

TEST(ModelUse, ThatFitsNowhereIsSaidSo) {
  EXPECT_EQ(chosen(used_model(), one_prompt(), used_cards(2, 24)),
            "--strategy tensor --tp 2 --nproc-per-node 2, which does not fit");
}

TEST(ModelUse, MapsLayersOverTheGpusOfOneProcess) {
  UseDevices devices = used_cards(4, 80);
  devices.is_one_process = true;
  EXPECT_EQ(chosen(used_model(), of_records(), devices), "--strategy device_map --pp 2");
}

TEST(ModelUse, NeedsItsWeightsItsAdaptersAndItsCaches) {
  ModelUse use = one_prompt();
  const auto memory = [&](const UseDevices& devices) {
    return choose_division(used_model(), use, devices)->division.memory;
  };
  const UseMemory whole = memory(used_cards(1, 200)), half = memory(used_cards(2, 80));
  EXPECT_NEAR(static_cast<double>(whole.weights) / kBytesOfOneGiB, 131.4, 0.2);
  EXPECT_NEAR(static_cast<double>(half.weights), static_cast<double>(whole.weights) / 2,
              0.01 * static_cast<double>(whole.weights));
  constexpr int64_t kValues = 100'000'000, kBytes = 6;  // fp32, and a copy in bf16
  use.adapter_values = kValues;
  EXPECT_EQ(memory(used_cards(1, 200)).weights - whole.weights, kValues * kBytes);
  use.sequences.rows = 2;
  constexpr int64_t kOfToken = 80 * 2 * 8 * 128 * 2;  // layers, keys and values, heads, bf16
  EXPECT_GE(memory(used_cards(1, 200)).sequences - whole.sequences,
            use.sequences.tokens * kOfToken);
  use.sequences.keeps = false;
  EXPECT_LT(memory(used_cards(1, 200)).sequences,
            whole.sequences + use.sequences.tokens * kOfToken);
}

}  // namespace
}  // namespace sftrun::plan
