#include "sftrun/model/pass_graphs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "sftrun/train/adamw.h"
#include "support.h"
#include "support/reference.h"
#include "support/tensors.h"

/// Passes that are launched as graphs beside the same passes queued operation by operation.
namespace sftrun::model {
namespace {

/// Micro-batch `number` of a run: lengths, tokens and labels change, most sizes stay.
data::Batch batch_of(int64_t number, int64_t vocab_size) {
  constexpr int64_t kLengths[][3] = {{30, 11, 1}, {25, 20, 9}, {41, 2, 3}, {90, 30, 5}};
  std::vector<data::Example> examples;
  for (const int64_t length : kLengths[number % 4]) {
    data::Example example;
    for (int64_t i = 0; i < length; ++i)
      example.tokens.push_back(static_cast<int32_t>((17 * i + 5 * number + length) % vocab_size));
    for (int64_t i = 0; i < length; ++i) {
      const bool has_label = (i + number) % 4 != 0 && i + 1 < length;
      example.labels.push_back(has_label ? example.tokens[static_cast<size_t>(i) + 1]
                                         : data::kIgnoreIndex);
      example.label_tokens += has_label ? 1 : 0;
    }
    examples.push_back(std::move(example));
  }
  return data::make_batch(data::ExampleStore::in_memory(examples), {{0}, {1}, {2}}, 0, 3);
}

constexpr uint32_t kSteps = 3;

struct Numbers {
  std::vector<double> losses;
  at::Tensor grads, weights;  // after the last micro-batch
  int64_t graphs = 0;
};

struct CountedUnits final : layers::UnitHooks {
  int64_t num_ready = 0;
  void gradients_ready(int64_t) override { ++num_ready; }
};

/// Steps of two micro-batches, of which each changes the weights.
Numbers run(const std::filesystem::path& path, DecoderOptions options, GraphUse use) {
  const at::NoGradGuard no_grad;
  options.device = test::kCard;
  const auto decoder = Decoder::load(weights::Checkpoint::open(path), options);
  CountedUnits units;
  PassGraphs always(Stage(*decoder), {.use = GraphUse::kAlways}),
      passes(Stage(*decoder, &units), {.use = use});
  train::AdamW optimizer(decoder->parameters(), {});
  Numbers numbers;
  for (uint32_t step = 0; step < kSteps; ++step) {
    decoder->parameters().zero_grad();
    for (const int64_t micro_step : {0, 1}) {
      const data::Batch batch =
          batch_of(2 * static_cast<int64_t>(step) + micro_step, decoder->arch().vocab_size);
      // Both runs compute the same shapes: their products add in the same order.
      const PackedBatch packed =
          prepare_batch(batch, decoder->rope(), decoder->batch_target(), {42, step, true},
                        {.grad_factor = 1.0 / (1 + step), .sizes = always.sizes_for(batch)});
      const at::Tensor loss = passes.forward_backward(packed, {});
      numbers.losses.push_back(loss.item<double>());
    }
    numbers.grads = decoder->parameters().grad().cpu();
    optimizer.step(1e-2, 1.0);
  }
  EXPECT_EQ(units.num_ready, 2 * kSteps * (decoder->arch().num_layers + 2));
  numbers.weights = decoder->parameters().master().cpu();
  numbers.graphs = passes.size();
  return numbers;
}

void expect_same(const std::filesystem::path& path, const DecoderOptions& options) {
  const Numbers queued = run(path, options, GraphUse::kOff),
                launched = run(path, options, GraphUse::kAlways);
  EXPECT_EQ(queued.graphs, 0);
  EXPECT_GT(launched.graphs, 0);
  for (size_t i = 0; i < queued.losses.size(); ++i)
    EXPECT_NEAR(launched.losses[i] / queued.losses[i], 1, 1e-5) << "micro-batch " << i;
  EXPECT_TRUE(test::close(launched.grads, queued.grads, 1e-4));
  EXPECT_TRUE(test::close(launched.weights, queued.weights, 1e-4));
}

/// Each has what the others have not; all families are in tests/cuda/device_parity.py.
TEST(GpuPassGraphs, Families) {
  for (const char* family : {"llama", "gemma2", "gemma4", "gpt_oss", "phi3"}) {
    SCOPED_TRACE(family);
    DecoderOptions options;
    options.trains = Trains::kLora;
    options.lora.dropout = 0.1;
    options.neftune_noise_alpha = 5;
    expect_same(test::data("families") / family, options);
  }
}

TEST(GpuPassGraphs, EveryKindOfTraining) {
  const std::filesystem::path path = test::data("families") / "qwen3";
  DecoderOptions options;
  options.trains = Trains::kFull;
  expect_same(path, options);
  options.trains = Trains::kLora;
  options.gradient_checkpointing = true;
  expect_same(path, options);
  options.gradient_checkpointing = false;
  options.lora.dora = true;
  expect_same(path, options);
}

/// What is unpacked ahead is unpacked on a stream of its own, in the graph, too.
TEST(GpuPassGraphs, QuantisedBases) {
  DecoderOptions options;
  options.trains = Trains::kLora;
  options.dtype = at::kBFloat16;
  for (const QuantFormat format : {QuantFormat::kNf4, QuantFormat::kInt8}) {
    options.base.quant = QuantOptions{.format = format};
    expect_same(test::data("models/tied-gqa"), options);
  }
}

/// What no graph can be captured of is computed all the same.
TEST(GpuPassGraphs, WhatCannotBeCaptured) {
  const auto with_delta_nets =
      Decoder::load(weights::Checkpoint::open(test::data("families") / "qwen3_5"),
                    {.device = test::kCard, .trains = Trains::kLora});
  PassGraphs none(Stage(*with_delta_nets), {.use = GraphUse::kAlways});
  EXPECT_EQ(none.sizes_for(batch_of(0, 60)), std::nullopt);
  const auto decoder = Decoder::load(weights::Checkpoint::open(test::data("families") / "llama"),
                                     {.device = test::kCard, .trains = Trains::kLora});
  for (const PassGraphs::Options& options :
       {PassGraphs::Options{.use = GraphUse::kOff},
        PassGraphs::Options{.use = GraphUse::kAlways, .has_aux_loss = true},
        PassGraphs::Options{.use = GraphUse::kAlways, .communicates_in_passes = true}}) {
    PassGraphs passes(Stage(*decoder), options);
    const data::Batch batch = batch_of(0, decoder->arch().vocab_size);
    EXPECT_EQ(passes.sizes_for(batch), std::nullopt);
  }
}

/// A capture that fails leaves the device as it was.
TEST(GpuGraphs, AreGivenUp) {
  const at::Tensor x = at::ones({64}, at::TensorOptions().device(test::kCard));
  const auto add = [&] { x.add_(1); };
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(kernels::capture(test::kCard, nullptr,
                                  [&] {
                                    add();
                                    (void)x.sum().item<float>();  // waits
                                  }),
                 c10::Error);
    EXPECT_THROW(kernels::capture(test::kCard, nullptr,
                                  [&] {
                                    add();
                                    TORCH_CHECK(false, "of its own");
                                  }),
                 c10::Error);
  }
  add();
  EXPECT_EQ(x.sum().item<float>(), 128);
  const auto graph = kernels::capture(test::kCard, nullptr, add);
  EXPECT_EQ(x.sum().item<float>(), 128);
  graph->launch();
  graph->launch();
  EXPECT_EQ(x.sum().item<float>(), 256);
}

}  // namespace
}  // namespace sftrun::model
