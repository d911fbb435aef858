#include "sftrun/plan/step_memory.h"

#include <gtest/gtest.h>

#include "sftrun/plan/micro_batch.h"
#include "support/llama_shapes.h"

namespace sftrun::plan {
namespace {

config::RunConfig lora(bool recomputes) {
  config::RunConfig config;
  config.tuning.lora.r = 16;
  config.train.gradient_checkpointing =
      recomputes ? config::Checkpointing::kLayer : config::Checkpointing::kNone;
  return config;
}

constexpr int64_t kTokens = 1024, kHidden = 8192, kInner = 28672, kQueries = 8192, kKeys = 1024;

/// x, q, k, v, attention's output and its logarithms of sums, the middle, gate and up, LoRA's inner
/// columns of seven linears, for each layer.
TEST(StepMemory, WhatLayersSave) {
  const StepMemory memory = step_memory(test::llama_70b(), lora(false), {kTokens, 4});
  const int64_t layer = 2 * kHidden + 2 * kQueries + 2 * kKeys + 64 + 2 * kInner + 7 * 16;
  EXPECT_EQ(memory.kept, 80 * layer * kTokens * 4);
  EXPECT_EQ(memory.layer, (kHidden + 2 * kInner) * kTokens * 4) << "of the MLP";
}

TEST(StepMemory, RecomputationKeepsInputs) {
  config::RunConfig config = lora(true);
  const StepMemory memory = step_memory(test::llama_70b(), config, {kTokens, 2, /*on_gpu=*/true});
  EXPECT_EQ(memory.kept, 80 * kHidden * kTokens * 2);
  // Inner columns of q, k and v, of o, of gate and up (and as many beside these), and of down.
  const int64_t columns = 48 + 16 + 2 * 32 + 16;
  const int64_t saved = kHidden + 2 * kQueries + 2 * kKeys + 2 * 64 + 2 * kInner + columns;
  // Computed again: the gated product and the output, while the gradient of that waits.
  EXPECT_EQ(memory.layer, (saved + kInner + 2 * kHidden) * kTokens * 2);
  config.parallel.offload.activations = config::Offload::kCpu;
  EXPECT_EQ(step_memory(test::llama_70b(), config, {kTokens, 2, true}).kept,
            3 * kHidden * kTokens * 2);
  EXPECT_EQ(step_memory(test::llama_70b(), config, {kTokens, 2, false}).kept, memory.kept)
      << "a CPU's memory is the host's";
}

/// Joint linears have A and B of their adapters, with 16 columns for each 16 of the ranks' sum.
TEST(StepMemory, AdaptersOfJointLinears) {
  config::RunConfig config = lora(true);
  const MicroBatchShape on_gpu{kTokens, 2, /*on_gpu=*/true};
  const auto adapters = [&](const MicroBatchShape& shape) {
    return joint_adapter_bytes(StepContext(test::llama_70b(), config, shape), 0);
  };
  const int64_t values = 48 * (kHidden + kQueries + 2 * kKeys + 48) +
                         16 * (kQueries + kHidden + 16) + 32 * (kHidden + 2 * kInner + 32) +
                         16 * (kInner + kHidden + 16);
  EXPECT_EQ(adapters(on_gpu), 2 * values);
  EXPECT_EQ(adapters({kTokens, 2, /*on_gpu=*/false}), 0);
  // Quantised weights have no room for them: one layer's adapters have it while it is used.
  config.tuning.quant = config::quant_of(QuantFormat::kNf4);
  const auto workspace = [&] { return step_memory(test::llama_70b(), config, on_gpu).workspace; };
  const int64_t whole = workspace();
  config.parallel.axes.dp_shard = 2, config.parallel.axes.level = config::ShardLevel::kWeights;
  EXPECT_EQ(workspace() - whole, 2 * values);
  config.tuning.quant = config::Quant::kAuto;
  const int64_t divided = workspace();
  config.parallel.axes = {};
  EXPECT_EQ(divided, workspace());
  config.tuning.lora.dropout = 0.1;
  EXPECT_EQ(adapters(on_gpu), 0) << "these are not joined";
}

TEST(StepMemory, AllMicroBatchesOfAStepThatFetchesOnce) {
  config::RunConfig config = lora(true);
  config.parallel.fetch = config::Fetch::kPerStep;
  config.train.grad_accum.value = 4;
  EXPECT_EQ(step_memory(test::llama_70b(), config, {kTokens, 2, true}).kept,
            (4 * 80 + 3) * kHidden * kTokens * 2);
}

/// The gradient of a matrix is complete, in fp32, before it is added.
TEST(StepMemory, OfFullTraining) {
  config::RunConfig config = lora(true);
  config.tuning.lora.r = 1, config.tuning.lora.target_modules.names = {"k_proj"};
  const StepMemory adapter = step_memory(test::llama_70b(), config, {kTokens, 2, true});
  config.tuning.mode = config::TuningMode::kFull;
  const StepMemory full = step_memory(test::llama_70b(), config, {kTokens, 2, true});
  EXPECT_EQ(full.head - adapter.head, 128256 * kHidden * 4 - kTokens * kHidden * 2)
      << "in place of the gradient of the normed states";
  EXPECT_EQ(full.layer - adapter.layer, kHidden * kInner * 4 - kTokens * (kHidden + 16) * 2)
      << "the output is freed by then; r 1 is 16 columns";
  // On a CPU oneDNN copies the gradient of the logits.
  const auto head = [&](config::TuningMode mode) {
    config.tuning.mode = mode;
    return step_memory(test::llama_70b(), config, {kTokens, 4, /*on_gpu=*/false}).head;
  };
  const int64_t rows = (32 << 20) / 128256 / 64 * 64;
  EXPECT_EQ(head(config::TuningMode::kFull) - head(config::TuningMode::kLora),
            128256 * (kHidden + rows) * 4);
}

/// Bytes of a matrix are whole ones, with any number of tokens.
TEST(StepMemory, OfFullTrainingWithAnOddNumberOfTokens) {
  config::RunConfig config = lora(true);
  config.tuning.mode = config::TuningMode::kFull;
  constexpr int64_t kOdd = 1025;
  const int64_t values = 2 * kHidden + 2 * kQueries + 2 * kKeys + 2 * 64 +
                         3 * kInner;  // of a layer that is computed again
  EXPECT_EQ(step_memory(test::llama_70b(), config, {kOdd, 2, true}).layer,
            kOdd * values * 2 + kHidden * kInner * 4);
}

TEST(StepMemory, OfAHeadThatTrainsBesideAdapters) {
  const spec::ArchSpec arch = test::llama_70b();
  const int64_t matrix = arch.vocab_size * arch.hidden_size;
  config::RunConfig config;
  const auto head = [&](bool on_gpu) {
    return step_memory(arch, config, {kTokens, 2, on_gpu}).head;
  };
  const int64_t frozen = head(/*on_gpu=*/false);
  config.tuning.lora.modules_to_save = {"lm_head"};
  EXPECT_EQ(head(/*on_gpu=*/false), frozen + (2 + 4) * matrix) << "the product, and its copy";
  const int64_t saved = head(/*on_gpu=*/true);
  config.tuning = {.mode = config::TuningMode::kPartial, .trainable = {"lm_head"}};
  EXPECT_EQ(head(/*on_gpu=*/true), saved);
  config.tuning.mode = config::TuningMode::kFull;
  EXPECT_EQ(head(/*on_gpu=*/true), saved);
}

/// cuBLASLt adds the bias of queries, keys and values where no adapter makes them another product.
TEST(StepMemory, OfBiasesWithoutAdapters) {
  spec::ArchSpec arch = test::llama_70b();
  config::RunConfig config;
  const auto workspace = [&] { return step_memory(arch, config, {kTokens, 2, true}).workspace; };
  config.tuning.lora.target_modules.names = {"gate_proj"};
  const int64_t without = workspace();
  arch.qkv_bias = true;
  EXPECT_EQ(workspace() - without, 32 << 20);
  config.tuning.lora.target_modules.names = {"q_proj"};
  EXPECT_EQ(workspace(), without);
}

/// On a GPU a product reads a whole matrix.
TEST(StepMemory, OfAHeadThatIsQuantised) {
  config::RunConfig config = lora(true);
  config.tuning.quant = config::quant_of(QuantFormat::kNf4);
  const auto head = [&](bool on_gpu) {
    return step_memory(test::llama_70b(), config, {kTokens, 2, on_gpu}).head;
  };
  const int64_t on_gpu = head(true), on_cpu = head(false);
  config.tuning.quant_embeddings = true;
  EXPECT_EQ(head(true) - on_gpu, 128256 * kHidden * 2);
  EXPECT_EQ(head(false), on_cpu);
  config.tuning.quant = config::Quant::kGguf;
  config.tuning.quant_embeddings.reset();
  EXPECT_EQ(head(true) - on_gpu, 128256 * kHidden * 2);
  EXPECT_GT(step_memory(test::llama_70b(), config, {kTokens, 2, true}).workspace,
            step_memory(test::llama_70b(), config, {kTokens, 2, false}).workspace);
}

/// The last layers' backward passes come first.
TEST(StepMemory, ALayerWhoseFollowersAreFreed) {
  spec::ArchSpec arch = test::llama_70b();
  config::RunConfig config = lora(false);
  const auto layer = [&] { return step_memory(arch, config, {kTokens, 4}).layer; };
  const int64_t equal = layer();
  arch.layers[40].intermediate_size = 2 * kInner;
  EXPECT_EQ(layer(), equal) << "what 39 layers kept is free by then";
  arch.layers[40].intermediate_size = 0;
  arch.layers[79].intermediate_size = 2 * kInner;
  EXPECT_EQ(layer(), equal + 2 * kInner * kTokens * 4);
}

/// The case of docs/parallelism.md: QLoRA on two cards of 24 GB.
TEST(StepMemory, Of70BInFourBitsOnTwoCards) {
  config::RunConfig config = lora(true);
  config.tuning.mode = config::TuningMode::kQlora;
  config.parallel.strategy = config::Strategy::kTensor;
  config::resolve_axes(config.parallel, 2, 2);
  config.parallel.offload.activations = config::Offload::kCpu;
  constexpr double kGiB = 1 << 30;
  const StaticMemory held = static_memory(test::llama_70b(), config, 2, {}, {.on_gpu = true});
  // Layers in NF4 with nested scales, embedding and head in bf16, each a half.
  const double layer_values =
                   80.0 * (2 * kHidden * kQueries + 2 * kHidden * kKeys + 3.0 * kHidden * kInner),
               bytes = 0.5 + 1.0 / 64 + 4.0 / (64 * 256), ends = 2.0 * 128256 * kHidden * 2,
               norms = 161.0 * kHidden * 2;
  EXPECT_NEAR(static_cast<double>(held.base), (layer_values * bytes + ends) / 2 + norms, 1e5);
  const StepMemory step = step_memory(test::llama_70b(), config, {kTokens, 2, true});
  const double all = static_cast<double>(held.total() + step.peak()) / kGiB;
  EXPECT_LT(all, 23) << "without the driver's context";
  EXPECT_GT(all, 21);
}

/// The case of docs/experts.md: Qwen3-30B-A3B in NF4 with its base in the host's memory.
TEST(StepMemory, Of30BWithExpertsOnTheHost) {
  spec::ArchSpec arch = test::llama_70b();
  arch.family = "qwen3_moe";
  arch.vocab_size = 151936, arch.hidden_size = 2048, arch.intermediate_size = 6144;
  arch.num_layers = 48;
  arch.layers.assign(48, {.sparse = true});
  arch.num_heads = 32, arch.num_kv_heads = 4;
  arch.qk_norm = spec::QkNorm::kPerHead;
  arch.mixture.num_experts = 128, arch.mixture.top_k = 8, arch.mixture.intermediate_size = 768;
  config::RunConfig config = lora(true);
  config.tuning.mode = config::TuningMode::kQlora;
  config.tuning.lora.target_modules.names = {"q_proj", "k_proj", "v_proj", "o_proj"};
  config.parallel.offload = {.optimizer = config::Offload::kCpu,
                             .activations = config::Offload::kCpu,
                             .base = config::Offload::kCpu};
  const auto gib = [&] {
    return static_cast<double>(static_bytes(arch, config, 2, {}, {.on_gpu = true}) +
                               step_memory(arch, config, {2048, 2, true}).peak()) /
           (1 << 30);
  };
  EXPECT_LT(gib(), 4);
  const int64_t experts = 128 * 2 * 768 * 2048, queries = 32 * 128 * 2048, keys = 4 * 128 * 2048;
  EXPECT_EQ(step_memory(arch, config, {2048, 2, true}).workspace -
                step_memory(arch, config, {2048, 2, false}).workspace,
            2 * (queries + 2 * keys) * 2 + (32 << 20) + 2048 * 128 * 4 +
                joint_adapter_bytes(StepContext(arch, config, {2048, 2, true}), 0))
      << "two of q, k and v, cuBLAS, angles of all positions, and adapters of a layer";
  const int64_t decoding = step_memory(arch, config, {2048, 2, true}).layer,
                unpacking = step_memory(arch, config, {2048, 4, true}).layer;
  config.tuning.mode = config::TuningMode::kLora;
  EXPECT_EQ(decoding, step_memory(arch, config, {2048, 2, true}).layer)
      << "in 16 bits products decode the codes themselves";
  EXPECT_EQ(unpacking - step_memory(arch, config, {2048, 4, true}).layer, experts * 4)
      << "gate and up of all experts";
  config.tuning.mode = config::TuningMode::kQlora;
  config.parallel.offload = {};
  EXPECT_GT(gib(), 16);
}

}  // namespace
}  // namespace sftrun::plan
