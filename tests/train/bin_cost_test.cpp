#include "sftrun/train/bin_cost.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "sftrun/core/file.h"
#include "sftrun/core/rng.h"
#include "sftrun/train/batches.h"
#include "support/deal_spread.h"

namespace sftrun::train {
namespace {

struct VisionLanguageModel {
  const char* name;  ///< of scripts/fixtures/make_vision_shapes.py
  images::ProcessorKind kind;
};

spec::ArchSpec arch_of(const VisionLanguageModel& model) {
  const auto file = std::filesystem::path(SFTRUN_TEST_DATA) / "spec/vision/released" /
                    (std::string(model.name) + ".json");
  return spec::ArchSpec::from_hf_config(nlohmann::json::parse(read_text_file(file))["config"],
                                        "config.json");
}

images::ImageProcessor processor_of(const VisionLanguageModel& model) {
  images::ImageProcessor processor{.kind = model.kind};
  processor.row().defaults(processor);
  return processor;
}

/// A conversation of so many tokens of text, of which a fifth has labels.
data::Example conversation(int64_t text_tokens, int64_t num_images, int64_t width, int64_t height,
                           const images::ImageProcessor& processor) {
  const int64_t of_images = num_images * images::plan_image(processor, width, height).num_tokens;
  data::Example example;
  example.tokens.assign(static_cast<size_t>(of_images + text_tokens), 1);
  example.labels.assign(example.tokens.size(), data::kIgnoreIndex);
  const auto labelled = static_cast<std::ptrdiff_t>(text_tokens / 5);
  std::fill(example.labels.end() - 1 - labelled, example.labels.end() - 1, 1);
  example.label_tokens = labelled;
  for (int64_t image = 0; image < num_images; ++image)
    example.media.push_back({.media = {.path = "a.png"}, .width = width, .height = height});
  return example;
}

/// Six in ten are of text alone, three have a small image, one has four to eight large ones.
data::ExampleStore mixture(const images::ImageProcessor& processor, int64_t count) {
  RandomStream random(11, 0);
  const auto between = [&](int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random.next_below(static_cast<uint64_t>(most - least)));
  };
  std::vector<data::Example> examples;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t kind = between(0, 10), text = between(100, 600);
    if (kind < 6)
      examples.push_back(conversation(text, 0, 1, 1, processor));
    else if (kind < 9)
      examples.push_back(conversation(text, 1, between(100, 300), between(100, 300), processor));
    else
      examples.push_back(
          conversation(text, between(4, 9), between(900, 1300), between(700, 1000), processor));
  }
  return data::ExampleStore::in_memory(examples);
}

struct Waiting {
  double in_order = 0, by_cost = 0;  ///< shares of the ranks' time, on average of steps
};

/// Of an epoch with LoRA in the text model, eight micro-steps a step.
Waiting waiting_of(const VisionLanguageModel& model, int64_t batch_size, int64_t parts,
                   bool packing) {
  const spec::ArchSpec arch = arch_of(model);
  const images::ImageProcessor processor = processor_of(model);
  config::RunConfig config;
  config.model.max_seq_len = 32768;
  config.data.packing = packing;
  config.train.batch_size.value = batch_size;
  config.train.global_batch_size.value = 8 * batch_size * parts;
  const data::BinCost cost =
      bin_cost(plan::SequenceCost(arch, config, plan::TowerUse::of(config.tuning, arch, true)),
               processor, arch.vision->patches.side);
  const data::Dataset dataset{mixture(processor, packing ? 8192 : 1024), {}, {}, "f"};
  PlannedBatches plain(config, dataset), dealt(config, dataset);
  dealt.deal_with({.cost = cost, .size = batch_size, .parts = parts});
  Waiting waiting;
  const int64_t steps = plain.total_steps();
  for (int64_t step = 0; step < steps; ++step) {
    const data::StepBatch before = plain.at(step), after = dealt.at(step);
    EXPECT_EQ(before.bins, after.bins) << "the step has the same sequences";
    EXPECT_TRUE(before.deal.empty());
    std::vector<int64_t> costs;
    for (const data::Bin& bin : after.bins) costs.push_back(cost(after.examples, bin));
    const data::Deal in_order = test::deal_in_order(costs.size(), batch_size);
    waiting.in_order += test::waiting_share(in_order, costs, parts) / static_cast<double>(steps);
    waiting.by_cost += test::waiting_share(after.deal, costs, parts) / static_cast<double>(steps);
  }
  return waiting;
}

struct Case {
  VisionLanguageModel model;
  int64_t batch_size, parts;
  bool packing;
  Waiting waiting;  ///< expected, in percent
};

/// Shares of the ranks' time. With single sequences in a micro-batch no other division waits less: a step of 16 or 64 has as few with many images as it has.
TEST(BinCost, RanksWithUnevenImagesWaitLess) {
  constexpr VisionLanguageModel kSmol{"smolvlm2-2.2b", images::ProcessorKind::kIdefics3},
      kQwen{"qwen2.5-vl-7b", images::ProcessorKind::kQwen2Vl},
      kGemma{"gemma-3-4b", images::ProcessorKind::kGemma3};
  const Case cases[] = {
      {kSmol, 1, 2, false, {42.2, 19.8}}, {kSmol, 1, 8, false, {78.2, 40.4}},
      {kSmol, 4, 2, false, {34.4, 7.5}},  {kSmol, 4, 8, false, {64.5, 14.3}},
      {kSmol, 1, 2, true, {10.3, 2.2}},   {kSmol, 1, 8, true, {18.4, 5.0}},
      {kQwen, 1, 2, false, {36.9, 19.0}}, {kQwen, 1, 8, false, {78.0, 39.0}},
      {kQwen, 4, 2, false, {33.6, 7.4}},  {kQwen, 4, 8, false, {65.0, 14.5}},
      {kQwen, 1, 2, true, {6.7, 1.7}},    {kQwen, 1, 8, true, {18.1, 10.3}},
      {kGemma, 1, 2, false, {26.5, 9.5}}, {kGemma, 1, 8, false, {59.0, 19.9}},
      {kGemma, 4, 2, false, {18.2, 1.3}}, {kGemma, 4, 8, false, {41.0, 2.5}},
      {kGemma, 1, 2, true, {1.7, 0.4}},   {kGemma, 1, 8, true, {12.4, 9.0}},
  };
  for (const auto& [model, batch_size, parts, packing, expected] : cases) {
    const Waiting waiting = waiting_of(model, batch_size, parts, packing);
    const std::string name = std::string(model.name) + ", " + std::to_string(batch_size) +
                             " sequences, " + std::to_string(parts) + " ranks" +
                             (packing ? ", packed" : "");
    EXPECT_NEAR(100 * waiting.in_order, expected.in_order, 0.1) << name;
    EXPECT_NEAR(100 * waiting.by_cost, expected.by_cost, 0.1) << name;
  }
}

TEST(BinCost, CountsDocumentsAndImages) {
  const VisionLanguageModel model{"qwen2.5-vl-3b", images::ProcessorKind::kQwen2Vl};
  const spec::ArchSpec arch = arch_of(model);
  const images::ImageProcessor processor = processor_of(model);
  const config::RunConfig config;
  const plan::SequenceCost cost(arch, config, plan::TowerUse::of(config.tuning, arch, true));
  const data::BinCost of_bin = bin_cost(cost, processor, arch.vision->patches.side);
  const data::ExampleStore examples = data::ExampleStore::in_memory(
      {conversation(100, 0, 1, 1, processor), conversation(50, 2, 112, 112, processor)});
  EXPECT_EQ(of_bin(examples, {0}), cost.of_document(100, 20));
  EXPECT_EQ(of_bin(examples, {1}), cost.of_document(50 + 2 * 16, 10) + 2 * cost.of_tile(64));
  EXPECT_EQ(of_bin(examples, {1, 0}), of_bin(examples, {0}) + of_bin(examples, {1}));
}

}  // namespace
}  // namespace sftrun::train
