#include "sftrun/plan/micro_batch.h"

#include <gtest/gtest.h>

#include "sftrun/plan/step_memory.h"

namespace sftrun::plan {
namespace {

/// SmolLM2-135M's shape.
spec::ArchSpec small() {
  spec::ArchSpec arch;
  arch.family = "llama";
  arch.vocab_size = 49152, arch.hidden_size = 576, arch.intermediate_size = 1536,
  arch.num_layers = 30;
  arch.layers.resize(30);
  arch.num_heads = 9, arch.num_kv_heads = 3, arch.head_dim = 64,
  arch.max_position_embeddings = 2048;
  arch.tie_word_embeddings = true;
  return arch;
}

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(MicroBatch, StaticBytesOfLoraAndFull) {
  config::RunConfig config;
  config.tuning.lora.r = 8;
  const int64_t base = 134515008;  // of the published model
  const int64_t lora =
      30 * 8 * ((576 + 576) + 2 * (576 + 192) + (576 + 576) + 2 * (576 + 1536) + (1536 + 576));
  EXPECT_EQ(static_bytes(small(), config, 4), base * 4 + lora * 16);
  EXPECT_EQ(static_bytes(small(), config, 2), base * 2 + lora * 18);
  config.tuning.mode = config::TuningMode::kFull;
  EXPECT_EQ(static_bytes(small(), config, 4), base * 16);
}

/// What trains in full beside adapters is not frozen, too.
TEST(MicroBatch, ModulesThatAreSavedAreNotFrozen) {
  spec::ArchSpec arch = small();
  arch.tie_word_embeddings = false;
  config::RunConfig config;
  const int64_t matrix = arch.vocab_size * arch.hidden_size;
  const StaticMemory adapter = static_memory(arch, config, 2);
  for (const char* module : {"lm_head", "embed_tokens"}) {
    config.tuning.lora.modules_to_save = {module};
    const StaticMemory saved = static_memory(arch, config, 2);
    EXPECT_EQ(saved.base, adapter.base - 2 * matrix) << module;
    EXPECT_EQ(saved.trainable, adapter.trainable + 6 * matrix) << module;
    EXPECT_EQ(saved.gradients, adapter.gradients + 4 * matrix) << module;
    EXPECT_EQ(saved.optimizer, adapter.optimizer + 8 * matrix) << module;
  }
}

/// A tied head stays as it is, beside an embedding that trains and beside a head of its own.
TEST(MicroBatch, TiedMatricesThatAreSavedStayFrozenToo) {
  config::RunConfig config;
  const StaticMemory adapter = static_memory(small(), config, 2);
  for (const char* module : {"lm_head", "embed_tokens"}) {
    config.tuning.lora.modules_to_save = {module};
    EXPECT_EQ(static_memory(small(), config, 2).base, adapter.base) << module;
  }
}

/// The head is gathered with its neighbour, the last layer, and not spread over the layers.
TEST(MicroBatch, SavedHeadIsGatheredAsAUnit) {
  spec::ArchSpec arch = small();
  arch.tie_word_embeddings = false;
  config::RunConfig config;
  config.parallel.strategy = config::Strategy::kFsdp;
  config::resolve_axes(config.parallel, 4, 4);
  const int64_t gathered = static_memory(arch, config, 4, {}, {.on_gpu = true}).gathered;
  config.tuning.lora.modules_to_save = {"lm_head"};
  const int64_t matrix = arch.vocab_size * arch.hidden_size;
  EXPECT_NEAR(static_cast<double>(static_memory(arch, config, 4, {}, {.on_gpu = true}).gathered),
              static_cast<double>(gathered + 4 * matrix), 64)
      << "masters and gradients in place of frozen values";
}

/// Beside the divided memory, two neighbours are whole: the last layer, and the norm with the head,
/// which is the embedding.
TEST(MicroBatch, StaticBytesOfShards) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kFull;
  const double all = 134515008, layer = 576.0 * (576 + 2 * 192 + 576 + 3 * 1536) + 2 * 576,
               two = layer + 576 + 49152.0 * 576;
  const auto bytes = [&](config::Strategy strategy, int64_t element_bytes) {
    config.parallel.strategy = strategy;
    config::resolve_axes(config.parallel, 4, 4);
    return static_cast<double>(static_bytes(small(), config, element_bytes, {}, {.on_gpu = true}));
  };
  using enum config::Strategy;
  EXPECT_NEAR(bytes(kZero1, 4), all * (4 + 4 + 1 + 1 + 2), 16);
  EXPECT_NEAR(bytes(kZero2, 4), all * (4 + 1 + 1 + 2) + two * 4, 16);
  EXPECT_NEAR(bytes(kFsdp, 4), all * 16 / 4 + two * 8, 16);
  EXPECT_NEAR(bytes(kZero3, 2), all * 18 / 4 + two * 6, 16) << "masters are not gathered";
  const double on_a_cpu =
      static_cast<double>(static_bytes(small(), config, 2, {}, {.on_gpu = false}));
  EXPECT_NEAR(on_a_cpu - bytes(kZero3, 2), (49152.0 + 1) * 576 * 4, 16)
      << "Gloo copies a unit's gradients";
}

/// Each axis divides what the others leave: stages by units, tensor parallelism each matrix, shards
/// the bytes of both.
TEST(MicroBatch, AxesDivideTogether) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kFull;
  const auto held = [&](config::ParallelConfig parallel, int world_size) {
    config.parallel = parallel;
    config::resolve_axes(config.parallel, world_size, world_size);
    return static_memory(small(), config, 4, {}, {.on_gpu = true});
  };
  using enum config::Strategy;
  const StaticMemory tensor = held({.strategy = kTensor}, 3),
                     both = held({.strategy = kFsdp, .tp = 3}, 12);
  EXPECT_NEAR(static_cast<double>(both.trainable), static_cast<double>(tensor.trainable) / 4, 16);
  EXPECT_NEAR(static_cast<double>(both.optimizer), static_cast<double>(tensor.optimizer) / 4, 16);
  EXPECT_GT(both.gathered, 0);
  const StaticMemory stages = held({.strategy = kPipeline}, 2),
                     sharded = held({.strategy = kZero1, .pp = 2}, 8);
  EXPECT_NEAR(static_cast<double>(sharded.optimizer), static_cast<double>(stages.optimizer) / 4,
              16);
  EXPECT_NEAR(static_cast<double>(sharded.gradients), static_cast<double>(stages.gradients) * 1.25,
              16);
}

/// Units of a quantised base differ in bytes more than in values: the embedding stays in bf16.
TEST(MicroBatch, GatheredUnitsHaveTheirOwnFormats) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kQlora;
  config.tuning.lora.r = 8;
  config.parallel.strategy = config::Strategy::kFsdp;
  config::resolve_axes(config.parallel, 2, 2);
  const spec::ArchSpec arch = small();
  const int64_t values = 576 * (576 + 2 * 192 + 576 + 3 * 1536),
                lora = 8 * ((576 + 576) * 2 + 2 * (576 + 192) + 3 * (576 + 1536));
  const int64_t packed_layers = base_bytes(arch, config.tuning, 2) - 49152 * 576 * 2 - 61 * 576 * 2;
  const StaticMemory memory = static_memory(arch, config, 2, {}, {.on_gpu = true});
  EXPECT_NEAR(
      static_cast<double>(memory.gathered),
      static_cast<double>(packed_layers / 30 + 2 * 576 * 2 + lora * 10 + (49152 * 576 + 576) * 2),
      64);
  EXPECT_LT(packed_layers / 30, values) << "less than a byte for a value";
}

TEST(MicroBatch, WhatIsOnTheHostIsNotOnTheDevice) {
  config::RunConfig config;
  config.train.gradient_checkpointing = config::Checkpointing::kLayer;
  const auto held = [&](bool on_gpu) {
    return static_bytes(small(), config, 2, {}, {.on_gpu = on_gpu});
  };
  const int64_t whole = held(true), base = 134515008 * 2;
  config.parallel.offload.base = config::Offload::kCpu;
  // Two neighbours stay: the last layer, and the norm with the head, which is the embedding.
  const auto of_adapters = static_cast<double>(
      joint_adapter_bytes(StepContext(small(), config, {.element_bytes = 2, .on_gpu = true}), 0));
  const double layer = 576.0 * (576 + 2 * 192 + 576 + 3 * 1536) + 2 * 576 + of_adapters / 2;
  EXPECT_NEAR(static_cast<double>(whole - held(true)),
              static_cast<double>(base) - 2 * (layer + 576 + 49152.0 * 576), 16);
  EXPECT_EQ(held(false), whole) << "a CPU's memory is the host's";
  const auto fitting = [&] {
    return max_micro_batch(small(), config, kGiB, 2, {}, {.on_gpu = true});
  };
  config.model.max_seq_len = 2048;
  const int64_t with_inputs = fitting();
  config.parallel.offload.activations = config::Offload::kCpu;
  EXPECT_GT(fitting(), with_inputs);
}

/// Two units of weights and gradients stay on the device, and two parts of the gradients of a unit.
TEST(MicroBatch, TrainedWeightsOnTheHost) {
  using enum config::Strategy;
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kFull;
  const auto held = [&](config::Strategy strategy, int shards, bool on_gpu = true) {
    config.parallel.strategy = strategy;
    config::resolve_axes(config.parallel, shards, shards);
    return static_memory(small(), config, 2, {}, {.on_gpu = on_gpu});
  };
  const int64_t on_a_cpu = held(kSingle, 1, false).total();
  config.parallel.offload.params = config::Offload::kCpu;
  // The tied head with its norm, and the layer before it.
  const double head = 49152.0 * 576 + 576, of_attention = 2 * (576.0 + 192) * 576,
               of_mlp = 3.0 * 1536 * 576, norms = 2.0 * 576,
               two_units = head + of_attention + of_mlp + norms;
  for (const auto& [strategy, shards] : {std::pair(kSingle, 1), std::pair(kFsdp, 4)}) {
    const StaticMemory memory = held(strategy, shards);
    EXPECT_EQ(memory.base + memory.trainable + memory.gradients + memory.optimizer, 0);
    EXPECT_NEAR(static_cast<double>(memory.gathered), two_units * (2 + 4 + 4.0 / shards), 16);
  }
  EXPECT_EQ(held(kSingle, 1, false).total(), on_a_cpu) << "a CPU's memory is the host's";
}

TEST(AutoStrategy, IsTheFirstThatFits) {
  using enum config::Strategy;
  config::RunConfig config;
  config.model.max_seq_len = 64;
  const auto chosen = [&](double gib, int world_size, int local_world_size) {
    return auto_strategy(small(), config,
                         {.memory_bytes = static_cast<uint64_t>(gib * kGiB),
                          .element_bytes = 2,
                          .on_gpu = true,
                          .world_size = world_size,
                          .local_world_size = local_world_size})
        .strategy;
  };
  // LoRA: a base of 0.25 GiB in bf16
  EXPECT_EQ(chosen(100, 1, 1), kSingle);
  EXPECT_EQ(chosen(1, 4, 4), kDdp);
  EXPECT_EQ(chosen(0.35, 4, 4), kFsdp);
  EXPECT_EQ(chosen(0.35, 8, 4), kHybrid) << "two machines";
  EXPECT_EQ(chosen(0.35, 8, 1), kFsdp) << "one device in each machine";
  EXPECT_EQ(chosen(0.01, 4, 4), kPipeline) << "nothing fits: what needs least";
  // All weights: 2.25 GiB, of which 1 are moments, 0.5 gradients
  config.tuning.mode = config::TuningMode::kFull;
  EXPECT_EQ(chosen(4, 4, 4), kDdp);
  EXPECT_EQ(chosen(2.2, 4, 4), kZero1);
  EXPECT_EQ(chosen(1.5, 4, 4), kZero2);
  EXPECT_EQ(chosen(1.1, 4, 4), kFsdp);
  // In host memory they are divided, too.
  config.parallel.offload.params = config::Offload::kCpu;
  EXPECT_EQ(chosen(4, 1, 1), kSingle);
  EXPECT_EQ(chosen(4, 4, 4), kFsdp);
  EXPECT_EQ(chosen(4, 8, 4), kHybrid);
  config.train.optimizer = config::Optimizer::kMuon;
  EXPECT_EQ(chosen(1.2, 4, 4), kDdp);
}

TEST(MicroBatch, BaseInFewerBits) {
  config::TuningConfig tuning;
  tuning.mode = config::TuningMode::kQlora;
  const spec::ArchSpec arch = small();
  const int64_t all = 134515008, layer = 576 * (576 + 2 * 192 + 576 + 3 * 1536);
  const auto nf4 = [](int64_t values) {
    const int64_t blocks = values / 64;
    return values / 2 + blocks + (blocks + 255) / 256 * 4;
  };
  const int64_t packed = 30 * (2 * nf4(576 * 576) + 2 * nf4(192 * 576) + 3 * nf4(1536 * 576));
  EXPECT_EQ(base_bytes(arch, tuning, 2), (all - 30 * layer) * 2 + packed);
  tuning.skip_modules = {"o_proj", "layers.0.self_attn.q_proj"};
  EXPECT_EQ(base_bytes(arch, tuning, 2),
            (all - 30 * layer) * 2 + packed + 31 * (2 * 576 * 576 - nf4(576 * 576)));
  tuning.skip_modules.clear();
  tuning.quant_embeddings = true;  // tied: once
  EXPECT_EQ(base_bytes(arch, tuning, 2),
            (all - 30 * layer - 49152 * 576) * 2 + packed + nf4(49152 * 576));
  // What the files have in fewer bits stays, and nothing else is quantised then.
  const StoredBytes stored = {{"model.layers.3.mlp.up_proj.weight", 1000}};
  EXPECT_EQ(base_bytes(arch, tuning, 2, stored), (all - 1536 * 576) * 2 + 1000);
  tuning.skip_modules = {"up_proj"};
  EXPECT_EQ(base_bytes(arch, tuning, 2, stored), all * 2);
  tuning.skip_modules = {};
  tuning.quant = config::Quant::kNone;
  EXPECT_EQ(base_bytes(arch, tuning, 2, stored), all * 2);
}

TEST(MicroBatch, StaticBytesOfEightBitMoments) {
  config::RunConfig config;
  config.train.optimizer = config::Optimizer::kAdamW8bit;
  config.tuning.mode = config::TuningMode::kFull;
  const int64_t all = 134515008, embedding = 49152 * 576, norms = 61 * 576;
  const int64_t in_8bit = all - embedding - norms;  // every one a multiple of 256
  EXPECT_EQ(static_bytes(small(), config, 4),
            all * 8 + (embedding + norms) * 8 + in_8bit * 2 + in_8bit / 256 * 8);
  config.train.optimizer = config::Optimizer::kPagedAdamW8bit;
  EXPECT_EQ(static_bytes(small(), config, 4),
            all * 8 + (embedding + norms) * 8 + in_8bit * 2 + in_8bit / 256 * 8);
  EXPECT_EQ(static_bytes(small(), config, 4, {}, {.on_gpu = true}), all * 8 + (64 << 20));
  config.train.optimizer = config::Optimizer::kAdamW8bit;
  config.tuning.mode = config::TuningMode::kLora;
  config.tuning.lora.r = 4;  // too small but for down_proj's and gate's and up's side of 1536
  const int64_t lora = 4 * ((576 + 576) + 2 * (576 + 192) + (576 + 576) + 3 * (576 + 1536));
  EXPECT_EQ(static_bytes(small(), config, 4),
            all * 4 + 30 * (lora * 8 + (lora - 3 * 6144) * 8 + 3 * (6144 * 2 + 24 * 8)));
}

TEST(MicroBatch, StaticBytesOfOtherOptimizers) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kFull;
  const int64_t all = 134515008, embedding = 49152 * 576, norms = 61 * 576;
  const auto state = [&](config::Optimizer optimizer) {
    config.train.optimizer = optimizer;
    return static_bytes(small(), config, 4) - all * 8;  // beside weight and gradient
  };
  EXPECT_EQ(state(config::Optimizer::kLion), all * 4);
  EXPECT_EQ(state(config::Optimizer::kSgd), 0);
  config.train.momentum = 0.9;
  EXPECT_EQ(state(config::Optimizer::kSgd), all * 4);
  EXPECT_EQ(state(config::Optimizer::kMuon), all * 4 + (embedding + norms) * 4);
  const int64_t rows_and_columns =
      49152 + 576 + 30 * (2 * (576 + 576) + 2 * (192 + 576) + 3 * (576 + 1536));
  EXPECT_EQ(state(config::Optimizer::kAdafactor), 4 * (rows_and_columns + norms));
}

/// What the reference model reads of the trained values: in the compute dtype, a part of it where they
/// are divided. An adapter's parts are masters, which its copies are made of.
TEST(MicroBatch, TheStartIsKeptForTheReferenceModel) {
  const auto start = [](config::RunConfig config, config::Strategy strategy, int devices,
                        int64_t element_bytes) {
    config.train.objective = config::Objective::kDpo;
    config.parallel.strategy = strategy;
    config::resolve_axes(config.parallel, devices, devices);
    const StaticMemory memory = static_memory(small(), config, element_bytes, {}, {.on_gpu = true});
    config.train.objective = config::Objective::kSft;
    const StaticMemory without =
        static_memory(small(), config, element_bytes, {}, {.on_gpu = true});
    EXPECT_EQ(without.start, 0);
    EXPECT_EQ(memory.total() - without.total(), memory.start);
    return memory.start;
  };
  using enum config::Strategy;
  config::RunConfig full, adapter;
  full.tuning.mode = config::TuningMode::kFull;
  const int64_t values = start(full, kDdp, 2, 4) / 4;
  EXPECT_GT(values, 100'000'000);
  EXPECT_EQ(start(full, kDdp, 2, 2), 2 * values);
  EXPECT_EQ(start(full, kFsdp, 2, 2), values);
  EXPECT_EQ(start(full, kZero2, 4, 2), values / 2);
  EXPECT_EQ(start(adapter, kDdp, 2, 2), 0) << "new LoRA starts as the base";
  adapter.tuning.lora.init_from = "first";
  const int64_t of_lora = start(adapter, kDdp, 2, 2) / 2;
  EXPECT_GT(of_lora, 0);
  EXPECT_EQ(start(adapter, kFsdp, 2, 2), of_lora * 4 / 2);
  adapter.train.reference = "base";
  EXPECT_EQ(start(adapter, kDdp, 2, 2), 0);
}

TEST(MicroBatch, FitsTheDevice) {
  config::RunConfig config;  // max_seq_len 2048: one bin in fp32 takes about 1.4 GiB
  EXPECT_EQ(max_micro_batch(small(), config, 1 * kGiB, 4), 1);
  EXPECT_EQ(max_micro_batch(small(), config, 8 * kGiB, 4), 4);
  EXPECT_EQ(max_micro_batch(small(), config, 1024 * kGiB, 4), config::kMaxAutoMicroBatch);
  config.train.objective = config::Objective::kDpo;  // a pair of sequences
  EXPECT_EQ(max_micro_batch(small(), config, 8 * kGiB, 4), 2);
  config.train.objective = config::Objective::kSft;
  const int64_t plain = max_micro_batch(small(), config, 8 * kGiB, 4);
  config.train.gradient_checkpointing = config::Checkpointing::kLayer;
  EXPECT_GT(max_micro_batch(small(), config, 8 * kGiB, 4), plain);
}

}  // namespace
}  // namespace sftrun::plan
