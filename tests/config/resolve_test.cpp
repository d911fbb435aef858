#include "config_test_base.h"
#include "sftrun/core/error.h"
#include "support/expect_error.h"

namespace sftrun::config {
namespace {

using test::expect_error;

struct Shape {
  int64_t world_size, max_micro_batch, micro, accum;
};

TEST(ResolveBatch, AimsAt32) {
  const Shape shapes[] = {
      {1, 8, 8, 4}, {2, 8, 4, 4},  // the guide's worked example: 4 * 2 GPUs * 4 = 32
      {4, 8, 2, 4}, {8, 8, 1, 4},  {16, 8, 2, 1}, {32, 8, 1, 1}, {64, 8, 1, 1},
      {1, 4, 4, 8}, {1, 3, 2, 16}, {1, 2, 2, 16}, {1, 1, 1, 32}, {1, 64, 8, 4},
      {2, 3, 2, 8}, {2, 1, 1, 16}, {4, 1, 1, 8},  {3, 8, 2, 5},  {5, 8, 1, 6},
      {6, 8, 1, 5}, {7, 8, 1, 4},  {12, 8, 2, 1},  // 32 is no multiple: 30, 30, 30, 28, 24
  };
  for (const Shape& shape : shapes) {
    const BatchShape batch = resolve_batch(shape.world_size, shape.max_micro_batch);
    EXPECT_EQ(batch.micro_batch_size, shape.micro)
        << shape.world_size << " ranks, at most " << shape.max_micro_batch;
    EXPECT_EQ(batch.grad_accum_steps, shape.accum)
        << shape.world_size << " ranks, at most " << shape.max_micro_batch;
  }
}

TEST(ResolveBatch, HasItsPropertiesForAllSizes) {
  for (int64_t world_size = 1; world_size <= 70; ++world_size) {
    for (int64_t most = 1; most <= 12; ++most) {
      for (const int64_t target : {1, 7, 32, 48, 256}) {
        const BatchShape batch = resolve_batch(world_size, most, target);
        const int64_t global = batch.micro_batch_size * batch.grad_accum_steps * world_size;
        EXPECT_LE(batch.micro_batch_size, most);
        EXPECT_EQ(global, std::max<int64_t>(1, target / world_size) * world_size);
        const int64_t bins_per_rank = global / world_size;
        EXPECT_TRUE(batch.micro_batch_size == 1 || batch.grad_accum_steps >= kMinAutoGradAccum ||
                    bins_per_rank < kMinAutoGradAccum);
      }
    }
  }
}

RunConfig with_batch(AutoInt batch, AutoInt accum, AutoInt global) {
  RunConfig config;
  config.train.batch_size = batch;
  config.train.grad_accum = accum;
  config.train.global_batch_size = global;
  return config;
}

TEST(Resolve, DerivesTheThirdBatchSize) {
  struct Case {
    AutoInt batch, accum, global;
    int world_size;
    int64_t want_batch, want_accum, want_global;
  };
  const AutoInt automatic;
  const Case cases[] = {
      {automatic, automatic, automatic, 2, 4, 4, 32},
      {{6}, {4}, automatic, 2, 6, 4, 48},
      {{4}, automatic, {32}, 2, 4, 4, 32},
      {automatic, {4}, {32}, 2, 4, 4, 32},
      {automatic, automatic, {64}, 2, 8, 4, 64},
      {{1}, automatic, automatic, 2, 1, 16, 32},
      {{6}, automatic, automatic, 2, 6, 2, 24},
      {{64}, automatic, automatic, 2, 64, 1, 128},
      {automatic, {64}, automatic, 2, 1, 64, 128},
      {automatic, {2}, automatic, 1, 8, 2, 16},
      {{2}, {2}, {8}, 2, 2, 2, 8},
      {automatic, automatic, {2}, 1, 2, 1, 2},
      {automatic, {1}, {48}, 3, 16, 1, 48},
  };
  for (const Case& c : cases) {
    RunConfig config = with_batch(c.batch, c.accum, c.global);
    resolve(config, "x.yaml", c.world_size);
    EXPECT_EQ(config.train.batch_size.value, c.want_batch);
    EXPECT_EQ(config.train.grad_accum.value, c.want_accum);
    EXPECT_EQ(config.train.global_batch_size.value, c.want_global);
    EXPECT_TRUE(config.train.eval_batch_size.is_auto()) << "there is nothing to evaluate on";
    config.data.val_split = 0.5;
    config.train.eval_strategy = EvalStrategy::kEpoch;
    resolve(config, "x.yaml", c.world_size);
    EXPECT_EQ(config.train.eval_batch_size.value, c.want_batch);
  }
}

TEST_F(ConfigTest, SuggestsBatchSizesThatDivide) {
  LoadedConfig loaded = load("train: {global_batch_size: 30}", {"train.batch_size=4"});
  const std::string file = (directory_ / "run.yaml").string();
  try {
    resolve(loaded, "run.yaml", 2);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "error: train.global_batch_size 30 is not a multiple of train.batch_size 4 * "
              "world_size 2 = 8\n"
              "  at   " +
                  file +
                  ":3:9; train.batch_size=4 from the command line\n"
                  "  fix: set train.global_batch_size to 24 or 32 (grad_accum 3 or 4)");
  }
  RunConfig config = with_batch({}, {}, {30});
  expect_error<ConfigError>([&] { resolve(config, "", 4); },
                            {"30 is not a multiple of world_size 4", "28 or 32"});
  config = with_batch({4}, {4}, {30});
  expect_error<ConfigError>(
      [&] { resolve(config, "", 2); },
      {"30 is not train.batch_size 4 * train.grad_accum 4 * world_size 2 = 32"});
  config = with_batch({}, {4}, {2});
  expect_error<ConfigError>([&] { resolve(config, "", 1); },
                            {"2 is not a multiple of train.grad_accum 4 * world_size 1 = 4",
                             "set train.global_batch_size to 4 (batch_size 1)"});
}

TEST(Resolve, FillsInWhatOthersImply) {
  RunConfig config;
  resolve(config, "configs/first.yaml", 1);
  EXPECT_EQ(config.train.learning_rate, 2e-4);
  EXPECT_EQ(config.train.warmup_ratio, 0.03);
  EXPECT_EQ(config.train.eval_strategy, EvalStrategy::kNo);
  EXPECT_EQ(config.output.dir, "runs/first");
  EXPECT_EQ(config.parallel.strategy, Strategy::kSingle);
  EXPECT_EQ(config.tuning.quant, Quant::kAuto);       // the checkpoint decides
  EXPECT_EQ(config.data.too_long, TooLong::kAuto);    // the data's format decides
  EXPECT_EQ(config.model.dtype, DTypeChoice::kAuto);  // the device decides
  const RunConfig once = config;
  resolve(config, "configs/other.yaml", 1);
  EXPECT_EQ(to_json(config), to_json(once));
}

TEST(Resolve, APipelineComputesOnePartOfTheBatchWithAllItsStages) {
  RunConfig config;
  config.train.batch_size = {2};
  config.train.global_batch_size = {16};
  config.parallel.strategy = Strategy::kPipeline;
  RunConfig all = config;
  resolve(all, "run.yaml", 4, 1);
  EXPECT_EQ(all.parallel.pp, 4);
  EXPECT_EQ(all.train.grad_accum.value, 8);
  RunConfig two = config;
  two.parallel.pp = 2;
  resolve(two, "run.yaml", 4, 1);
  EXPECT_EQ(two.train.grad_accum.value, 4);
  EXPECT_EQ(two.parallel.axes.data_parts(), 2);
  RunConfig three = config;
  three.parallel.pp = 3;
  test::expect_error<ConfigError>([&] { resolve(three, "run.yaml", 4, 1); },
                                  {"parallel.pp 3", "4 processes"});
  RunConfig uneven = two;
  uneven.train.grad_accum = {};
  uneven.train.global_batch_size = {15};
  test::expect_error<ConfigError>([&] { resolve(uneven, "run.yaml", 4, 1); },
                                  {"not a multiple", "2 copies of the model (4 processes / pp 2)"});
  RunConfig automatic;
  automatic.parallel.strategy = Strategy::kPipeline;
  resolve(automatic, "run.yaml", 4, 16);
  EXPECT_EQ(automatic.train.batch_size.value, 2) << "16 micro-batches for 4 stages";
  EXPECT_EQ(automatic.train.grad_accum.value, 16);
  RunConfig alone = config;
  resolve(alone, "run.yaml", 1, 1);
  EXPECT_EQ(alone.parallel.axes, Axes{});
  EXPECT_EQ(alone.parallel.strategy, Strategy::kSingle);
  EXPECT_EQ(alone.train.grad_accum.value, 8);
}

TEST(Resolve, OffloadedOptimizerStateIsThatOfAPagedOptimizer) {
  for (const auto& [given, paged] : {std::pair{Optimizer::kAdamW, Optimizer::kPagedAdamW},
                                     {Optimizer::kAdamW8bit, Optimizer::kPagedAdamW8bit},
                                     {Optimizer::kPagedAdamW, Optimizer::kPagedAdamW}}) {
    RunConfig config;
    config.train.optimizer = given;
    config.parallel.offload.optimizer = Offload::kCpu;
    resolve(config, "run.yaml", 1, 1);
    EXPECT_EQ(config.train.optimizer, paged);
  }
}

/// With weights or the base on the host, and the inputs of layers there.
TEST(Resolve, WeightsFromTheHostAreFetchedOncePerStep) {
  const auto fetch = [](const OffloadConfig& offload) {
    RunConfig config;
    config.parallel.offload = offload;
    resolve(config, "run.yaml", 1, 1);
    return config.parallel.fetch;
  };
  constexpr Offload kCpu = Offload::kCpu;
  EXPECT_EQ(fetch({.activations = kCpu, .base = kCpu}), Fetch::kPerStep);
  EXPECT_EQ(fetch({.activations = kCpu, .params = kCpu}), Fetch::kPerStep);
  EXPECT_EQ(fetch({.params = kCpu}), Fetch::kPerMicroBatch);
  EXPECT_EQ(fetch({.activations = kCpu}), Fetch::kPerMicroBatch);
}

TEST(Resolve, TheStrategyFollowsTheNumberOfProcesses) {
  using enum Strategy;
  for (const Strategy wanted : {kAuto, kSingle, kDdp})
    EXPECT_EQ(resolved_strategy(wanted, 1), kSingle);
  for (const Strategy wanted : {kAuto, kDdp}) EXPECT_EQ(resolved_strategy(wanted, 2), kDdp);
  for (const Strategy wanted : {kZero1, kZero2, kZero3, kFsdp, kHybrid}) {
    EXPECT_EQ(resolved_strategy(wanted, 1), kSingle);
    EXPECT_EQ(resolved_strategy(wanted, 2), wanted);
    EXPECT_NE(level_of({.strategy = wanted}), ShardLevel::kNone);
  }
  EXPECT_EQ(strategy_name(kSingle), "single");
  EXPECT_EQ(strategy_name(kDdp), "ddp");
  expect_error<ConfigError>([] { resolved_strategy(kSingle, 2, "run.yaml:3:1"); },
                            {"parallel.strategy is single, but the run has 2 processes",
                             "run.yaml:3:1", "remove parallel.strategy"});
}

/// Files of resolved values may be resolved again.
TEST(Resolve, APresetOfAxesGivesTheSameAxes) {
  using enum ShardLevel;
  int seen = 0;
  for (const int64_t pp : {1, 2, 3})
    for (const int64_t dp_replicate : {1, 2, 4})
      for (const int64_t dp_shard : {1, 2, 3})
        for (const int64_t tp : {1, 2, 5})
          for (const ShardLevel level : {kNone, kOptimizer, kGradients, kWeights}) {
            if ((dp_shard > 1) != (level != kNone)) continue;
            const Axes axes{.pp = pp,
                            .dp_replicate = dp_replicate,
                            .dp_shard = dp_shard,
                            .tp = tp,
                            .level = level};
            const auto world_size = static_cast<int>(pp * dp_replicate * dp_shard * tp);
            if (world_size == 1) continue;
            ParallelConfig again{.strategy = strategy_of(axes)};
            for (const AxisRow& row : axis_rows()) again.*row.asked = axes.*row.ranks;
            EXPECT_EQ(axes_of(again, world_size, world_size), axes) << describe(axes);
            ++seen;
          }
  EXPECT_EQ(seen, 27 * 7 - 1);
}

/// The sizes that resolving writes are enough.
TEST(Resolve, ResolvedAxesAreResolvedToThemselves) {
  constexpr int kWorldSize = 24;
  using Size = std::optional<int64_t>;
  for (const Size pp : {Size(), Size(2)})
    for (const Size tp : {Size(), Size(3)})
      for (const Size dp_shard : {Size(), Size(1), Size(2)})
        for (const Strategy strategy : {Strategy::kAuto, Strategy::kZero1, Strategy::kHybrid}) {
          ParallelConfig once{.strategy = strategy, .dp_shard = dp_shard, .pp = pp, .tp = tp};
          resolve_axes(once, kWorldSize, kWorldSize / 2);
          ParallelConfig again = once;
          resolve_axes(again, kWorldSize, kWorldSize);
          EXPECT_EQ(again.axes, once.axes) << describe(once.axes);
          EXPECT_EQ(again.strategy, once.strategy);
        }
}

TEST(Resolve, KeepsWhatIsGiven) {
  RunConfig config;
  config.tuning.mode = TuningMode::kPartial;
  config.train.warmup_steps = 0;
  config.train.fp16 = true;
  config.data.val_split = 0.1;
  config.output.dir = "here";
  resolve(config, "a.yaml", 1);
  EXPECT_EQ(config.train.learning_rate, 2e-5);
  EXPECT_FALSE(config.train.warmup_ratio);
  EXPECT_EQ(config.model.dtype, DTypeChoice::kFp16);
  EXPECT_EQ(config.train.eval_strategy, EvalStrategy::kEpoch);
  EXPECT_EQ(config.output.dir, "here");
}

TEST(QuantChoice, EveryFormatCanBeChosen) {
  for (const QuantFormatInfo& info : kQuantFormats) {
    if (!info.is_made) continue;
    const std::string name(info.name);
    const TuningConfig tuning =
        config_from_overrides({"tuning.mode=qlora", "tuning.quant=" + name,
                               "tuning.quant_block_size=32", "tuning.double_quant=false"})
            .config.tuning;
    const auto options = tuning.quant_options();
    ASSERT_TRUE(options) << name;
    EXPECT_EQ(options->format, info.format);
    EXPECT_EQ(options->block_size, 32);
    EXPECT_FALSE(options->nested);
    EXPECT_EQ(tuning.quant_name(), name);
  }
}

TEST(QuantChoice, WhatIsNotQuantised) {
  TuningConfig tuning;
  for (const Quant quant :
       {Quant::kAuto, Quant::kNone, Quant::kGguf, Quant::kMxfp4, Quant::kStored}) {
    tuning.quant = quant;
    EXPECT_FALSE(tuning.quantises_base());
    EXPECT_EQ(tuning.quant_name(), "");
  }
  tuning.quant = Quant::kAuto;
  tuning.mode = TuningMode::kQlora;
  EXPECT_EQ(tuning.quant_name(), "nf4");
}

TEST(Resolve, EvaluationAndHalfPrecision) {
  RunConfig config;
  config.data.val = {{.path = "v.jsonl"}};
  config.train.eval_steps = 10;
  config.train.bf16 = false;
  config.train.scheduler = Scheduler::kConstant;
  resolve(config, "a.yaml", 1);
  EXPECT_EQ(config.train.eval_strategy, EvalStrategy::kSteps);
  EXPECT_EQ(config.model.dtype, DTypeChoice::kFp32);
  EXPECT_EQ(config.train.warmup_ratio, 0);
}

}  // namespace
}  // namespace sftrun::config
