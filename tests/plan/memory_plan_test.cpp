#include "sftrun/plan/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sftrun/config/teacher.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/answers_memory.h"
#include "sftrun/plan/memory_change.h"
#include "sftrun/plan/stored_bytes.h"
#include "support/llama_shapes.h"
#include "support/load_config.h"
#include "support/temporary_directory.h"

namespace sftrun::plan {
namespace {

constexpr int64_t kBytesOfGiB = int64_t{1} << 30;

config::RunConfig resolved_lora() {
  config::RunConfig config;
  config.model.dtype = config::DTypeChoice::kBf16;
  config.tuning.quant = config::Quant::kNone;
  config.train.batch_size.value = 4, config.train.grad_accum.value = 8;
  config.parallel.strategy = config::Strategy::kSingle;
  return config;
}

/// With the axes of a strategy on one machine.
config::RunConfig with_axes(config::RunConfig config, config::Strategy strategy, int count) {
  config.parallel.strategy = strategy;
  config::resolve_axes(config.parallel, count, count);
  return config;
}

RunDevices cards(int count, double gib = 24) {
  return {.memory_bytes = static_cast<uint64_t>(gib * kBytesOfGiB),
          .element_bytes = 2,
          .on_gpu = true,
          .world_size = count,
          .local_world_size = count};
}

/// What tests/smoke/memory_plan.py measures beside tensors.
TEST(MemoryPlan, OfAProcessOnACpu) {
  RunDevices cpu = cards(1);
  cpu.on_gpu = false;
  spec::ArchSpec arch = test::llama_8b();
  const MemoryPlan plan = memory_plan(arch, resolved_lora(), cpu);
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(plan.context, 154 * kMiB + 200 * arch.vocab_size + plan.tensors() / 32);
  EXPECT_EQ(plan.peak(), plan.tensors() + plan.context);
}

/// What the plan of a run counts more with a teacher beside the student.
StaticMemory held_by_teacher(config::RunConfig config, RunDevices devices,
                             const TeacherUse& teacher) {
  config.train.objective = config::Objective::kDistill;
  const StaticMemory without = memory_plan(test::llama_8b(), config, devices).held;
  devices.teacher = std::make_shared<const TeacherUse>(teacher);
  const MemoryPlan plan = memory_plan(test::llama_8b(), config, devices);
  EXPECT_EQ(plan.held.base, without.base);
  EXPECT_GT(plan.step.teacher, 0);
  EXPECT_GE(plan.step.peak(), plan.step.teacher + plan.step.workspace);
  return {.teacher = plan.held.teacher, .gathered = plan.held.gathered - without.gathered};
}

TEST(MemoryPlan, CountsATeacherAsItIsDivided) {
  config::TrainConfig train;
  TeacherUse teacher{.arch = test::llama_8b(), .form = config::form_of_teacher(train)};
  const config::RunConfig run = resolved_lora();
  const int64_t whole = base_bytes(teacher.arch, teacher.form, 2);
  const StaticMemory single = held_by_teacher(run, cards(1), teacher);
  EXPECT_EQ(single.teacher, whole);
  EXPECT_EQ(single.gathered, 0);
  using enum config::Strategy;
  EXPECT_EQ(held_by_teacher(with_axes(run, kDdp, 4), cards(4), teacher).teacher, whole);
  EXPECT_EQ(held_by_teacher(with_axes(run, kZero2, 4), cards(4), teacher).teacher, whole);
  const StaticMemory fsdp = held_by_teacher(with_axes(run, kFsdp, 4), cards(4), teacher);
  EXPECT_NEAR(static_cast<double>(fsdp.teacher), static_cast<double>(whole) / 4,
              static_cast<double>(whole) / 50);
  EXPECT_EQ(fsdp.gathered, 0);  // of the student alone; the teacher's are a part of its pass
  for (const config::Strategy strategy : {kTensor, kPipeline})
    EXPECT_LT(held_by_teacher(with_axes(run, strategy, 4), cards(4), teacher).teacher, whole / 2);
  teacher.adapter_values = 1000;
  EXPECT_EQ(held_by_teacher(run, cards(1), teacher).teacher, whole + 1000 * (4 + 2));
  train.teacher_quant = config::quant_of(QuantFormat::kNf4);
  teacher.form = config::form_of_teacher(train);
  EXPECT_LT(held_by_teacher(run, cards(1), teacher).teacher, whole / 2);
}

TEST(MemoryPlan, IsTheSumOfItsParts) {
  const config::RunConfig config = resolved_lora();
  const MemoryPlan plan = memory_plan(test::llama_8b(), config, cards(1));
  EXPECT_EQ(plan.held.total(), static_bytes(test::llama_8b(), config, 2, {}, {.on_gpu = true}));
  EXPECT_EQ(plan.step.peak(), step_memory(test::llama_8b(), config, {4 * 2048, 2, true}).peak());
  EXPECT_EQ(plan.tensors(), plan.held.total() + plan.step.peak());
  EXPECT_EQ(plan.communication, 0) << "one process";
  EXPECT_EQ(plan.peak(), plan.tensors() + plan.context);
  EXPECT_EQ(plan.needed(), plan.peak() + plan.tensors() / 20);
  config::RunConfig pairs = config;
  pairs.train.objective = config::Objective::kDpo;
  EXPECT_EQ(micro_batch_shape(pairs, cards(1)).tokens, 2 * 4 * 2048);
  pairs.data.bin_tokens.value = 1024;
  EXPECT_EQ(micro_batch_shape(pairs, cards(1)).tokens, 2 * 4 * 1024);
  RunDevices with_data = cards(1);  // whose pairs fit into packed sequences
  with_data.tokens_of_bin = 1020.25;
  EXPECT_EQ(micro_batch_shape(pairs, with_data).tokens, 4081);
  pairs.data.bin_tokens.value = 100;
  EXPECT_EQ(micro_batch_shape(pairs, with_data).tokens, 2 * 4 * 100) << "a shorter sequence";
}

TEST(MemoryPlan, RanksNeedBuffers) {
  config::RunConfig config = with_axes(resolved_lora(), config::Strategy::kDdp, 2);
  const MemoryPlan plain = memory_plan(test::llama_8b(), config, cards(2));
  EXPECT_GT(plain.communication, 0);
  config.train.ddp_comm_hook = config::CommHook::kBf16;
  const MemoryPlan rounded = memory_plan(test::llama_8b(), config, cards(2));
  EXPECT_EQ(rounded.communication - plain.communication, rounded.held.gradients / 2);
  RunDevices on_cpu = cards(2);
  on_cpu.on_gpu = false;
  config.train.ddp_comm_hook = config::CommHook::kNone;
  EXPECT_EQ(memory_plan(test::llama_8b(), config, on_cpu).communication, 4 << 20)
      << "Gloo's buffers";
}

TEST(LayerKinds, ShowWhatRecomputationSaves) {
  spec::ArchSpec arch = test::llama_8b();
  arch.delta_net = {.num_key_heads = 16,
                    .num_value_heads = 32,
                    .key_dim = 128,
                    .value_dim = 128,
                    .conv_kernel = 4};
  arch.mixture.num_experts = 8, arch.mixture.top_k = 2, arch.mixture.intermediate_size = 1024;
  for (size_t layer = 0; layer < 24; ++layer) arch.layers[layer].mixer = spec::Mixer::kDeltaNet;
  arch.layers[31].sparse = true;
  const MicroBatchShape shape{1024, 2, true};
  config::RunConfig config = resolved_lora();
  const std::vector<LayerKind> kinds = layer_kinds(arch, config, shape);
  ASSERT_EQ(kinds.size(), 3U);
  EXPECT_EQ(kinds[0].name, "delta net, MLP");
  EXPECT_EQ(kinds[0].layers, 24);
  EXPECT_EQ(kinds[1].name, "attention, MLP");
  EXPECT_EQ(kinds[2].name, "attention, experts");
  EXPECT_EQ(kinds[2].layers, 1);
  using enum config::Checkpointing;
  for (const config::Checkpointing again : {kNone, kMlp, kAttention, kLayer}) {
    config.train.gradient_checkpointing = again;
    const StepMemory step = step_memory(arch, config, shape);
    int64_t kept = 0, largest = 0;
    for (const LayerKind& kind : kinds) {
      kept += kind.bytes.at(again).kept;
      largest = std::max(largest, kind.bytes.at(again).in_backward);
    }
    EXPECT_NEAR(static_cast<double>(kept), static_cast<double>(step.kept), 64);
    EXPECT_LE(step.layer, largest) << "the delta nets come after the last layers are freed";
  }
  EXPECT_EQ(kinds[2].bytes.at(kLayer).kept, 4096 * 1024 * 2) << "the input";
}

/// A row in src/plan/blocks for each block of spec/blocks.
TEST(LayerKinds, OfEveryBlock) {
  spec::ArchSpec arch = test::llama_8b();
  arch.mixture.num_experts = 8, arch.mixture.top_k = 2, arch.mixture.intermediate_size = 1024;
  arch.mixture.beside_dense = true;
  arch.per_layer_size = 256;
  arch.layers[0].sparse = true;
  const std::vector<LayerKind> kinds = layer_kinds(arch, resolved_lora(), {1024, 2, true});
  EXPECT_EQ(kinds[0].name, "attention, MLP and experts");
  EXPECT_EQ(kinds[1].name, "attention, MLP");
}

/// The terms of a mixture by hand: layers of one kind differ by what the experts keep.
TEST(LayerKinds, ExpertsKeepRowsOfTheChosen) {
  spec::ArchSpec arch = test::llama_8b();
  arch.mixture.num_experts = 8, arch.mixture.top_k = 2, arch.mixture.intermediate_size = 1024;
  config::RunConfig config = resolved_lora();
  config.tuning.lora.target_modules.names = {"q_proj"};
  const auto kept = [&](bool sparse) {
    arch.layers[0].sparse = sparse;
    return layer_kinds(arch, config, {1024, 4})[0].bytes.at(config::Checkpointing::kNone).kept /
           (sparse ? 1 : 32);
  };
  const int64_t dense = kept(false), sparse = kept(true);
  const int64_t of_mlp = 2 * 14336, of_experts = 2 * 2 * 1024 + 8 + 2 * 9;
  EXPECT_EQ(dense - sparse, (of_mlp - of_experts) * 1024 * 4);
}

/// Gate and up of an MLP beside experts exist while the experts compute.
TEST(AnswersMemory, OfAnMlpBesideExperts) {
  spec::ArchSpec arch = test::llama_8b();
  for (spec::LayerSpec& layer : arch.layers) layer.sparse = true;
  arch.mixture.num_experts = 8, arch.mixture.top_k = 2, arch.mixture.intermediate_size = 1024;
  config::RunConfig config = resolved_lora();
  config.train.predict_with_generate = true;
  config.train.generation_batch_size = 1;
  const auto pass = [&](bool beside_dense) {
    arch.mixture.beside_dense = beside_dense;
    return answers_memory(arch, config, cards(1), memory_plan(arch, config, cards(1)))->pass;
  };
  EXPECT_EQ(pass(true) - pass(false), int64_t{3} * 14336 * config.model.max_seq_len * 2);
}

TEST(Strategies, OfOneProcessAndOfSeveral) {
  using enum config::Strategy;
  config::RunConfig config = resolved_lora();
  const auto names = [&](const RunDevices& devices) {
    std::vector<config::Strategy> found;
    for (const StrategyChoice& choice : strategy_choices(test::llama_8b(), config, devices))
      if (choice.sizes == StrategySizes{choice.sizes.strategy} ||
          choice.sizes.strategy == kTensor)  // on several machines it has a size
        found.push_back(choice.sizes.strategy);
    return found;
  };
  using Found = std::vector<config::Strategy>;
  EXPECT_EQ(names(cards(1)), (Found{kSingle}));
  config = with_axes(config, kDdp, 4);
  EXPECT_EQ(names(cards(4)), (Found{kDdp, kFsdp, kPipeline, kTensor, kDeviceMap}));
  RunDevices machines = cards(4);
  machines.world_size = 8;
  EXPECT_EQ(names(machines), (Found{kDdp, kFsdp, kHybrid, kPipeline, kTensor}));
  config.tuning.mode = config::TuningMode::kFull;
  EXPECT_EQ(names(cards(4)), (Found{kDdp, kZero1, kZero2, kFsdp, kPipeline, kTensor, kDeviceMap}));
}

/// LoRA of 70B in bf16, 2 sequences of 4096 tokens, on 8 cards of 80 GB: the weights fit with fsdp
/// alone, the activations do not.
TEST(Strategies, CombineWhereOneIsNotEnough) {
  using enum config::Strategy;
  const spec::ArchSpec arch = test::llama_70b();
  config::RunConfig config = resolved_lora();
  config.parallel.strategy = kAuto;
  config.model.max_seq_len = 4096;
  config.train.batch_size.value = 2, config.train.grad_accum.value = 1;
  EXPECT_EQ(auto_strategy(arch, config, cards(8, 80)).name(), "fsdp") << "the batch is given";
  config.train.grad_accum.value.reset();
  EXPECT_EQ(auto_strategy(arch, config, cards(8, 80)).name(), "fsdp, tp 4")
      << "two sequences without recomputation need 92 GiB with tp 2";
  config.train.batch_size.value.reset();
  const StrategySizes chosen = auto_strategy(arch, config, cards(8, 80));
  config.train.grad_accum.value = 1;
  EXPECT_EQ(chosen.name(), "fsdp, tp 2");
  config::RunConfig of_bnb = config;
  of_bnb.train.grad_accum.value.reset();
  of_bnb.tuning.backend = config::TuningBackend::kBnb;
  EXPECT_EQ(auto_strategy(arch, of_bnb, cards(8, 80)).name(), "pipeline") << "refused with tp";
  config.parallel.tp = chosen.tp;
  config = with_axes(config, chosen.strategy, 8);
  std::vector<std::string> names, own;
  for (const StrategyChoice& choice : strategy_choices(arch, config, cards(8, 80))) {
    names.push_back(choice.sizes.name());
    if (choice.is_own) own.push_back(choice.sizes.name());
  }
  EXPECT_EQ(own, (std::vector<std::string>{"fsdp, tp 2"}));
  EXPECT_EQ(names, (std::vector<std::string>{"ddp", "fsdp", "pipeline", "tensor", "device_map",
                                             "fsdp, tp 2", "fsdp, tp 4", "fsdp, pp 2"}));
}

TEST(Strategies, KeepTheGlobalBatchOrSayWhyNot) {
  using enum config::Strategy;
  config::RunConfig config = with_axes(resolved_lora(), kDdp, 4);
  const StrategyChoice tensor =
      with_strategy(test::llama_8b(), config, {.strategy = kTensor}, cards(4));
  ASSERT_TRUE(tensor.config) << tensor.refusal;
  EXPECT_EQ(*tensor.config->parallel.tp, 4);
  EXPECT_EQ(*tensor.config->train.grad_accum.value, 32) << "one part of the batch, not four";
  const StrategyChoice map =
      with_strategy(test::llama_8b(), config, {.strategy = kDeviceMap}, cards(4));
  ASSERT_TRUE(map.config) << map.refusal;
  EXPECT_EQ(*map.config->parallel.pp, 4);
  EXPECT_EQ(map.devices->world_size, 1);
  RunDevices machines = cards(4);
  machines.world_size = 8;
  EXPECT_EQ(*with_strategy(test::llama_8b(), config, tensor_in_machine(8, 4), machines)
                 .config->parallel.tp,
            4)
      << "inside a machine";
  EXPECT_EQ(tensor_in_machine(8, 4).name(), "tensor, tp 4");
  EXPECT_EQ(tensor_in_machine(4, 4).name(), "tensor");
  const StrategyChoice odd =
      with_strategy(test::llama_8b(), config, {.strategy = kTensor}, cards(5));
  EXPECT_FALSE(odd.config);
  EXPECT_FALSE(odd.refusal.empty());
  config.train.optimizer = config::Optimizer::kMuon;
  EXPECT_EQ(with_strategy(test::llama_8b(), config, {.strategy = kFsdp}, cards(4)).refusal,
            "train.optimizer muon computes each update from a whole matrix, and parallel.strategy: "
            "fsdp divides matrices over the processes");
}

/// What validation and resolution refuse, neither memory-check nor `auto` offers.
TEST(Strategies, AreNotThoseThatTheRunRefuses) {
  using enum config::Strategy;
  const config::RunConfig plain = with_axes(resolved_lora(), kDdp, 4);
  const auto refused = [&](config::RunConfig config) {
    std::vector<config::Strategy> strategies;
    config.tuning.mode = config::TuningMode::kFull;
    for (const StrategyChoice& choice : strategy_choices(test::llama_8b(), config, cards(4)))
      if (choice.sizes == StrategySizes{choice.sizes.strategy} && !choice.refusal.empty())
        strategies.push_back(choice.sizes.strategy);
    return strategies;
  };
  using Found = std::vector<config::Strategy>;
  EXPECT_EQ(refused(plain), Found{});
  config::RunConfig config = plain;
  config.tuning.backend = config::TuningBackend::kBnb;
  EXPECT_EQ(refused(config), Found{kTensor});
  config = plain, config.parallel.offload.params = config::Offload::kCpu;
  EXPECT_EQ(refused(config), (Found{kZero1, kZero2, kPipeline, kTensor, kDeviceMap}));
  config = plain, config.parallel.fetch = config::Fetch::kPerStep;
  EXPECT_EQ(refused(config), (Found{kPipeline, kDeviceMap}));
}

TEST(Strategies, ShardsNeedLessThanCopies) {
  using enum config::Strategy;
  config::RunConfig config = with_axes(resolved_lora(), kDdp, 8);
  config.tuning.mode = config::TuningMode::kFull;
  config.train.gradient_checkpointing = config::Checkpointing::kLayer;
  int64_t before = INT64_MAX;
  for (const config::Strategy strategy : {kDdp, kZero1, kZero2, kFsdp}) {
    const StrategyChoice choice =
        with_strategy(test::llama_8b(), config, {.strategy = strategy}, cards(8));
    const int64_t needed = memory_plan(test::llama_8b(), *choice.config, *choice.devices).needed();
    EXPECT_LT(needed, before) << config::strategy_name(strategy);
    before = needed;
  }
}

TEST(Largest, IsTheLastThatFits) {
  config::RunConfig config = resolved_lora();
  config.train.gradient_checkpointing = config::Checkpointing::kLayer;
  const auto needed = [&](int64_t batch, int64_t seq_len) {
    config::RunConfig one = config;
    one.train.batch_size.value = batch, one.model.max_seq_len = seq_len;
    return memory_plan(test::llama_8b(), one, cards(1)).needed();
  };
  const int64_t memory = 24 * kBytesOfGiB;
  const int64_t batch = largest_batch_size(test::llama_8b(), config, cards(1), {}, memory);
  EXPECT_LE(needed(batch, 2048), memory);
  EXPECT_GT(needed(batch + 1, 2048), memory);
  const int64_t seq_len = largest_seq_len(test::llama_8b(), config, cards(1), {}, memory);
  EXPECT_EQ(seq_len % kSeqLenStep, 0);
  EXPECT_LE(needed(4, seq_len), memory);
  EXPECT_GT(needed(4, seq_len + kSeqLenStep), memory);
  EXPECT_EQ(largest_batch_size(test::llama_8b(), config, cards(1), {}, 8 * kBytesOfGiB), 0);
  EXPECT_EQ(largest_seq_len(test::llama_8b(), config, cards(1), {}, 8 * kBytesOfGiB), 0);
}

/// The largest batch and the longest sequence rest on the same sequences.
TEST(Largest, BothAreOfFullSequences) {
  config::RunConfig config = resolved_lora();
  config.train.gradient_checkpointing = config::Checkpointing::kLayer;
  constexpr int64_t kMemory = 24 * kBytesOfGiB;
  const int64_t batch = largest_full_batch_size(test::llama_8b(), config, cards(1), {}, kMemory),
                length = largest_seq_len(test::llama_8b(), config, cards(1), {}, kMemory);
  config.data.bin_tokens.value = 256;
  RunDevices devices = cards(1);
  devices.tokens_of_bin = 200;
  EXPECT_EQ(largest_full_batch_size(test::llama_8b(), config, devices, {}, kMemory), batch);
  EXPECT_EQ(largest_seq_len(test::llama_8b(), config, devices, {}, kMemory), length);
  EXPECT_GT(largest_batch_size(test::llama_8b(), config, devices, {}, kMemory), batch);
}

TEST(Largest, IsAtMostTheModelsPositions) {
  const config::RunConfig config = resolved_lora();
  constexpr int64_t kMemory = 24 * kBytesOfGiB;
  const int64_t fitting = largest_seq_len(test::llama_8b(), config, cards(1), {}, kMemory);
  const auto longest = [&](int64_t positions) {
    spec::ArchSpec arch = test::llama_8b();
    arch.ropes = {spec::RopeSpec{.max_position_embeddings = positions}};
    for (spec::LayerSpec& layer : arch.layers) layer.rope = 0;
    return longest_sequences(arch, config, cards(1), {}, kMemory);
  };
  EXPECT_EQ(longest(fitting / 2).useful, fitting / 2);
  EXPECT_EQ(longest(fitting / 2).fitting, fitting);
  EXPECT_TRUE(longest(fitting / 2).model_limits());
  EXPECT_EQ(longest(fitting).useful, fitting);
  EXPECT_FALSE(longest(2 * fitting).model_limits());
}

class Changes : public ::testing::Test {
 protected:
  std::optional<CheapestChange> found(double gib, const RunDevices& devices) {
    return cheapest_change(test::llama_8b(), config_, devices, {},
                           static_cast<int64_t>(gib * kBytesOfGiB));
  }
  std::vector<std::string> settings(double gib, const RunDevices& devices = cards(1)) {
    const auto change = found(gib, devices);
    return change ? change->settings() : std::vector<std::string>{"none"};
  }

  config::RunConfig config_ = resolved_lora();
};

using Settings = std::vector<std::string>;

/// The memory that a run with other settings needs is enough for a change to them.
TEST_F(Changes, AreTheCheapestThatAreEnough) {
  using enum config::Checkpointing;
  const auto needed = [&](int64_t batch, config::Checkpointing again) {
    config::RunConfig config = config_;
    config.train.batch_size.value = batch, config.train.gradient_checkpointing = again;
    return static_cast<double>(memory_plan(test::llama_8b(), config, cards(1)).needed()) /
           kBytesOfGiB;
  };
  EXPECT_EQ(settings(needed(2, kNone)), (Settings{"train.batch_size=2", "train.grad_accum=16"}));
  EXPECT_EQ(settings(needed(1, kNone)), (Settings{"train.batch_size=1", "train.grad_accum=32"}));
  config_.train.batch_size.value = 1, config_.train.grad_accum.value = 32;
  EXPECT_EQ(settings(needed(1, kMlp)), (Settings{"train.gradient_checkpointing=mlp"}));
  EXPECT_EQ(settings(needed(1, kLayer)), (Settings{"train.gradient_checkpointing=true"}));
}

TEST_F(Changes, SeveralTogetherWhereOneIsNotEnough) {
  const auto change = found(12, cards(1));
  ASSERT_TRUE(change);
  EXPECT_GT(change->changes.size(), 1U);
  EXPECT_LE(change->plan.needed(), 12 * kBytesOfGiB);
  // Each is needed: without it the run does not fit.
  const Settings all = change->settings();
  EXPECT_NE(std::find(all.begin(), all.end(), "tuning.quant=nf4"), all.end());
  EXPECT_EQ(std::find_if(all.begin(), all.end(),
                         [](const std::string& one) { return one.starts_with("model."); }),
            all.end())
      << "sequences are shortened last";
  EXPECT_EQ(settings(0.5), Settings{"none"});
}

TEST_F(Changes, DivideBeforeTheyRound) {
  config_ = with_axes(config_, config::Strategy::kDdp, 4);
  config_.train.batch_size.value = 1;
  config_.train.gradient_checkpointing = config::Checkpointing::kLayer;
  EXPECT_EQ(settings(14, cards(4)), (Settings{"parallel.strategy=fsdp"}));
  const config::RunConfig on_four = config_;
  config_ = with_axes(config_, config::Strategy::kSingle, 1);
  const Settings four_bits{"tuning.mode=qlora", "tuning.quant=nf4"};
  EXPECT_EQ(settings(14, cards(1)), four_bits) << "rather than weights that wait on the host";
  config_ = on_four;
  config_.tuning.mode = config::TuningMode::kFull;
  using enum config::Strategy;
  for (const config::Strategy strategy : {kZero1, kZero2, kFsdp}) {
    const StrategyChoice choice =
        with_strategy(test::llama_8b(), config_, {.strategy = strategy}, cards(4));
    const int64_t needed = memory_plan(test::llama_8b(), *choice.config, cards(4)).needed();
    EXPECT_EQ(settings(static_cast<double>(needed) / kBytesOfGiB, cards(4)),
              Settings{"parallel.strategy=" + std::string(config::strategy_name(strategy))});
  }
  config_ = with_axes(config_, config::Strategy::kSingle, 1);
  config::RunConfig in_8bit = config_;
  in_8bit.train.optimizer = config::Optimizer::kAdamW8bit;
  const int64_t needed = memory_plan(test::llama_8b(), in_8bit, cards(1)).needed();
  EXPECT_EQ(settings(static_cast<double>(needed) / kBytesOfGiB, cards(1)),
            (Settings{"train.optimizer=adamw_8bit"}));
}

/// LoRA of 70B in bf16 on 8 cards of 80 GB, with fsdp and sequences that are long for them: each
/// matrix on two cards is enough, and keeps the global batch.
TEST_F(Changes, CombineAxes) {
  using enum config::Strategy;
  config_.model.max_seq_len = 32768;
  config_.train.batch_size.value = 1, config_.train.grad_accum.value = 4;
  config_.train.gradient_checkpointing = config::Checkpointing::kLayer;
  config_ = with_axes(config_, kFsdp, 8);
  const RunDevices devices = cards(8, 80);
  const auto needed = [&](const StrategySizes& sizes) {
    const StrategyChoice choice = with_strategy(test::llama_70b(), config_, sizes, devices);
    return memory_plan(test::llama_70b(), *choice.config, devices).needed();
  };
  const int64_t with_two = needed({.strategy = kFsdp, .tp = 2});
  ASSERT_LT(with_two, needed({.strategy = kFsdp}));
  config_.parallel.offload.activations = config::Offload::kCpu;
  const auto change = cheapest_change(test::llama_70b(), config_, devices, {},
                                      needed({.strategy = kFsdp, .tp = 2}));
  ASSERT_TRUE(change);
  EXPECT_EQ(change->settings(),
            (Settings{"parallel.strategy=fsdp", "parallel.tp=2", "train.grad_accum=8"}));
}

/// QLoRA of 70B on 2 cards of 24 GB, where no combination of axes exists.
TEST_F(Changes, OfALargeModelOnTwoSmallCards) {
  using enum config::Strategy;
  config_.tuning.mode = config::TuningMode::kQlora;
  config_.tuning.quant = config::quant_of(QuantFormat::kNf4);
  config_.model.max_seq_len = 2048;
  config_.train.batch_size.value = 4, config_.train.grad_accum.value = 4;
  config_ = with_axes(config_, kDdp, 2);
  const RunDevices devices = cards(2, 24);
  const auto change = cheapest_change(test::llama_70b(), config_, devices, {},
                                      static_cast<int64_t>(devices.memory_bytes));
  ASSERT_TRUE(change);
  EXPECT_LE(change->plan.needed(), static_cast<int64_t>(devices.memory_bytes));
  EXPECT_EQ(change->settings(),
            (Settings{"parallel.strategy=tensor", "parallel.offload.optimizer=cpu",
                      "train.gradient_checkpointing=true", "parallel.offload.activations=cpu",
                      "train.batch_size=2", "train.grad_accum=16"}));
}

/// NF4 of 70B with parts of matrices on 2 cards of 24 GB: 2.8 GiB too much.
TEST_F(Changes, KeepTheResultWhereTwoTogetherDo) {
  config_.tuning.mode = config::TuningMode::kQlora;
  config_.tuning.quant = config::quant_of(QuantFormat::kNf4);
  config_.model.max_seq_len = 2048;
  config_.train.batch_size.value = 1, config_.train.grad_accum.value = 32;
  config_.train.gradient_checkpointing = config::Checkpointing::kLayer;
  config_ = with_axes(config_, config::Strategy::kTensor, 2);
  const auto change = cheapest_change(test::llama_70b(), config_, cards(2), {}, 24 * kBytesOfGiB);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->settings(),
            (Settings{"parallel.offload.optimizer=cpu", "parallel.offload.activations=cpu"}));
}

/// PiSSA is refused with parts of matrices, Muon with shards.
TEST_F(Changes, DivideLayersWhereNothingElseIsPossible) {
  config_.model.max_seq_len = 2048;
  config_.train.batch_size.value = 1, config_.train.grad_accum.value = 4;
  config_.train.gradient_checkpointing = config::Checkpointing::kLayer;
  config_.tuning.lora.init = config::LoraInit::kPissa;
  config_.train.optimizer = config::Optimizer::kMuon;
  config_ = with_axes(config_, config::Strategy::kDdp, 8);
  const auto change =
      cheapest_change(test::llama_70b(), config_, cards(8, 80), {}, 80 * kBytesOfGiB);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->settings(), (Settings{"parallel.strategy=pipeline", "train.grad_accum=32"}));
}

/// With less and less memory: first the same result, then nearly, then worse ones.
TEST_F(Changes, ChangeTheResultOnlyWhereNothingElseFits) {
  config_.train.batch_size.value = 1;
  config_.tuning.mode = config::TuningMode::kFull;
  const auto rank_of = [](const std::string& cost) {
    return cost.starts_with("the same")      ? 0
           : cost.starts_with("nearly")      ? 1
           : cost.starts_with("a slightly")  ? 2
           : cost.starts_with("a different") ? 3
                                             : 4;
  };
  for (const int count : {1, 4}) {
    config_ =
        with_axes(config_, count == 1 ? config::Strategy::kSingle : config::Strategy::kDdp, count);
    int last = 0, several = 0;
    for (double gib = 150; gib > 2; gib *= 0.85) {
      if (memory_plan(test::llama_8b(), config_, cards(count)).needed() <= gib * kBytesOfGiB)
        continue;
      const auto change = found(gib, cards(count));
      if (!change) break;
      int rank = 0;
      for (const MemoryChange& one : change->changes) rank = std::max(rank, rank_of(one.cost));
      // Moments in 8 bits alone come before those on the host.
      if (rank != 1 || change->changes.size() > 1) {
        EXPECT_GE(rank, last) << count << " cards of " << gib
                              << " GiB: " << join(change->settings(), " ");
        last = rank;
      }
      several += change->changes.size() > 1 ? 1 : 0;
    }
    EXPECT_GE(last, 2);
    EXPECT_GT(several, 2);
  }
}

TEST_F(Changes, ShortenSequencesLast) {
  config_.train.batch_size.value = 1;
  config_.model.max_seq_len = 1 << 20;
  config_.parallel.offload.base = config::Offload::kCpu;
  const auto change = found(10, cards(1));
  ASSERT_TRUE(change);
  EXPECT_TRUE(change->settings().back().starts_with("model.max_seq_len="));
  EXPECT_LE(change->plan.needed(), 10 * kBytesOfGiB);
}

/// What is printed can be written into the YAML: the reader accepts it, and the plan is that of the
/// configuration with it.
TEST_F(Changes, AreValidSettings) {
  test::TemporaryDirectory directory;
  const std::filesystem::path yaml = directory / "run.yaml";
  write_file_atomically(yaml, "model: { name: m, dtype: bf16 }\ndata: { train: t.jsonl }\n");
  for (const char* mode : {"lora", "full"}) {
    for (const int count : {1, 4}) {
      for (double gib = 240; gib > 2; gib *= 0.7) {
        const std::vector<std::string> asked = {
            std::string("tuning.mode=") + mode, "tuning.quant=none", "train.batch_size=4",
            "train.grad_accum=8", count == 1 ? "parallel.strategy=auto" : "parallel.strategy=ddp"};
        config_ = config::load_config(yaml, asked).config;
        config::resolve(config_, yaml, count);
        if (memory_plan(test::llama_8b(), config_, cards(count)).needed() <= gib * kBytesOfGiB)
          continue;
        const auto change = found(gib, cards(count));
        if (!change) continue;
        Settings all = asked;
        const Settings more = change->settings();
        if (std::find(more.begin(), more.end(), "tuning.quant=nf4") != more.end())
          std::erase(all, "tuning.quant=none");
        all.insert(all.end(), more.begin(), more.end());
        config::RunConfig changed = config::load_config(yaml, all).config;
        config::resolve(changed, yaml, count);
        EXPECT_EQ(memory_plan(test::llama_8b(), changed, cards(count)).needed(),
                  change->plan.needed())
            << mode << " on " << count << " of " << gib << " GiB: " << join(all, " ");
      }
    }
  }
}

TEST(StoredBytes, AreAssumedFromTheMethod) {
  const spec::ArchSpec arch = test::llama_8b();
  const AssumedFiles nf4 = assumed_files(arch, {.method = "bitsandbytes"});
  EXPECT_EQ(nf4.kind, "stored");
  EXPECT_EQ(nf4.stored.size(), 32U * 7);
  const uint64_t values = 4096 * 14336, blocks = values / 64;
  EXPECT_EQ(nf4.stored.at("model.layers.0.mlp.up_proj.weight"),
            values / 2 + blocks + blocks / 256 * 4);
  EXPECT_EQ(assumed_files(arch, {.method = "fp8"}).stored.at("model.layers.3.mlp.up_proj.weight"),
            values + 14336 * 4);
  EXPECT_EQ(assumed_files(arch, {.method = "fp8", .block = {128, 128}})
                .blocks.at("model.layers.3.mlp.up_proj.weight"),
            kFp8LeastBlock);
  const AssumedFiles gptq = assumed_files(arch, {.method = "gptq", .group_sizes = {128}}),
                     of_rows = assumed_files(arch, {.method = "awq", .group_sizes = {-1}});
  EXPECT_EQ(gptq.stored.at("model.layers.3.mlp.up_proj.weight"), values / 2 + values / 128 * 5);
  EXPECT_EQ(gptq.blocks.at("model.layers.3.mlp.up_proj.weight"), 32);
  EXPECT_EQ(of_rows.stored.at("model.layers.3.mlp.up_proj.weight"), values / 2 + 14336 * 5);
  EXPECT_TRUE(assumed_files(arch, {.method = "mystery"}).stored.empty());
  spec::ArchSpec sparse = arch;
  sparse.mixture.num_experts = 8, sparse.mixture.top_k = 2, sparse.mixture.intermediate_size = 1024;
  sparse.layers[0].sparse = true;
  const AssumedFiles mxfp4 = assumed_files(sparse, {.method = "mxfp4"});
  EXPECT_EQ(mxfp4.kind, "mxfp4");
  EXPECT_EQ(mxfp4.stored.size(), 2U) << "gate and up together, and down";
  EXPECT_EQ(mxfp4.stored.at("model.layers.0.mlp.experts.down_proj"),
            uint64_t{8} * 4096 * 1024 / 32 * 17);
}

}  // namespace
}  // namespace sftrun::plan
