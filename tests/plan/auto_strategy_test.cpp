#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "sftrun/plan/memory_plan.h"
#include "support/llama_shapes.h"

namespace sftrun::plan {
namespace {

constexpr double kGiBOfAuto = 1 << 30;

struct AutoCase {
  const char* name;
  spec::ArchSpec arch;
  config::TuningMode mode;
  int count, of_machine;
  double gib;
};

std::vector<AutoCase> auto_cases() {
  using enum config::TuningMode;
  const spec::ArchSpec small = test::llama_8b(), large = test::llama_70b();
  return {{"70B, LoRA, 8 of 79", large, kLora, 8, 8, 79.1},
          {"70B, QLoRA, 2 of 24", large, kQlora, 2, 2, 24},
          {"70B, QLoRA, 4 of 40", large, kQlora, 4, 4, 40},
          {"70B, LoRA, 2 machines of 8 of 80", large, kLora, 16, 8, 80},
          {"70B, full, 4 machines of 8 of 80", large, kFull, 32, 8, 80},
          {"8B, LoRA, 4 of 24", small, kLora, 4, 4, 24},
          {"8B, full, 8 of 40", small, kFull, 8, 8, 40},
          {"8B, QLoRA, 2 of 12", small, kQlora, 2, 2, 12}};
}

RunDevices devices_of_case(const AutoCase& one) {
  return {.memory_bytes = static_cast<uint64_t>(one.gib * kGiBOfAuto),
          .element_bytes = 2,
          .on_gpu = true,
          .world_size = one.count,
          .local_world_size = one.of_machine};
}

/// As the YAML has it: `auto`.
config::RunConfig run_of_case(const AutoCase& one, int64_t seq_len, bool recomputes) {
  config::RunConfig config;
  config.model.dtype = config::DTypeChoice::kBf16;
  config.model.max_seq_len = seq_len;
  config.tuning.mode = one.mode;
  config.tuning.quant = one.mode == config::TuningMode::kQlora ? config::quant_of(QuantFormat::kNf4)
                                                               : config::Quant::kNone;
  if (recomputes) config.train.gradient_checkpointing = config::Checkpointing::kLayer;
  return config;
}

config::RunConfig divided(config::RunConfig config, const StrategySizes& sizes,
                          const RunDevices& devices, int64_t batch_size) {
  config.train.batch_size.value = batch_size, config.train.grad_accum.value = 64;
  config.parallel.strategy = sizes.strategy;
  config.parallel.pp = sizes.pp, config.parallel.tp = sizes.tp;
  config::resolve_axes(config.parallel, devices.world_size, devices.local_world_size);
  return config;
}

/// Whether a row of memory-check's table fits, with as many processes.
bool fits_somehow(const spec::ArchSpec& arch, const config::RunConfig& run,
                  const RunDevices& devices) {
  const auto choices = strategy_choices(arch, run, devices);
  return std::any_of(choices.begin(), choices.end(), [&](const StrategyChoice& choice) {
    return choice.config && choice.sizes.strategy != config::Strategy::kDeviceMap &&
           memory_plan(arch, *choice.config, devices).needed() <=
               static_cast<int64_t>(devices.memory_bytes);
  });
}

/// Longer sequences lead to other divisions, and never back.
TEST(AutoStrategy, GoesOneWayWithTheLength) {
  for (const AutoCase& one : auto_cases()) {
    for (const bool recomputes : {true, false}) {
      const RunDevices devices = devices_of_case(one);
      std::set<std::string> left;
      std::string last;
      for (int64_t seq_len = 256; seq_len < 400'000; seq_len += seq_len / 5) {
        const std::string name =
            auto_strategy(one.arch, run_of_case(one, seq_len, recomputes), devices).name();
        EXPECT_FALSE(left.contains(name))
            << one.name << ", " << seq_len << ": " << name << " again";
        if (!last.empty() && name != last) left.insert(last);
        last = name;
      }
    }
  }
}

TEST(AutoStrategy, FitsWhereARowOfTheTableFits) {
  int num_fitting = 0;
  for (const AutoCase& one : auto_cases()) {
    const RunDevices devices = devices_of_case(one);
    for (const int64_t batch_size : {1, 4}) {
      for (int64_t seq_len = 256; seq_len < 400'000; seq_len += seq_len / 2) {
        config::RunConfig asked = run_of_case(one, seq_len, /*recomputes=*/true);
        if (batch_size > 1) asked.train.batch_size.value = batch_size;
        const StrategySizes chosen = auto_strategy(one.arch, asked, devices);
        const config::RunConfig run = divided(asked, chosen, devices, batch_size);
        if (!fits_somehow(one.arch, run, devices)) break;
        ++num_fitting;
        EXPECT_LE(memory_plan(one.arch, run, devices).needed(),
                  static_cast<int64_t>(devices.memory_bytes))
            << one.name << ", " << batch_size << " of " << seq_len << ": " << chosen.name();
      }
    }
  }
  EXPECT_GT(num_fitting, 40);
}

/// LoRA of 70B on 8 H100: with 38912 tokens fsdp needs 82 of 79 GiB, and parts of matrices 74.
TEST(AutoStrategy, SpendsTheReserveOnWhatNeedsLeast) {
  const AutoCase one = auto_cases().front();
  const auto chosen = [&](int64_t seq_len) {
    return auto_strategy(one.arch, run_of_case(one, seq_len, true), devices_of_case(one)).name();
  };
  EXPECT_EQ(chosen(2048), "fsdp");
  const config::RunConfig long_run = run_of_case(one, 38912, true);
  const RunDevices devices = devices_of_case(one);
  const auto needed = [&](const StrategySizes& sizes) {
    return memory_plan(one.arch, divided(long_run, sizes, devices, 1), devices).needed();
  };
  const StrategySizes best = auto_strategy(one.arch, long_run, devices);
  using enum config::Strategy;
  for (const StrategySizes& other : {StrategySizes{.strategy = kFsdp},
                                     {.strategy = kFsdp, .tp = 2},
                                     {.strategy = kFsdp, .tp = 4},
                                     {.strategy = kFsdp, .pp = 2},
                                     {.strategy = kTensor},
                                     {.strategy = kPipeline}})
    EXPECT_LE(needed(best), needed(other)) << best.name() << " and " << other.name();
  EXPECT_LE(needed(best), static_cast<int64_t>(devices.memory_bytes));
}

/// What fsdp and parts of matrices are refused to.
TEST(AutoStrategy, HasStagesWhereNothingElseIsPossible) {
  AutoCase one = auto_cases().front();
  config::RunConfig run = run_of_case(one, 2048, true);
  run.train.optimizer = config::Optimizer::kMuon;
  EXPECT_EQ(auto_strategy(one.arch, run, devices_of_case(one)).name(), "pipeline");
  run.train.batch_size.value = 1, run.train.grad_accum.value = 4;
  EXPECT_EQ(auto_strategy(one.arch, run, devices_of_case(one)).name(), "ddp")
      << "the batch is given";
}

}  // namespace
}  // namespace sftrun::plan
