#include "run_resolution.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sftrun/config/refusals.h"
#include "sftrun/plan/refusals.h"
#include "support/expect_error.h"
#include "support/test_data.h"

namespace sftrun::app {
namespace {

using config::Strategy;

/// Models for which rows of the table of refusals are, and one for which none is.
struct Models {
  ModelHeaders dense = read_headers(test::kModels / "tied-gqa");
  std::vector<ModelHeaders> refused = {dense, dense, dense, dense};

  Models() {
    refused[0].arch.layers[1].keys_of = 0;
    refused[1].arch.per_layer_size = 8;
    spec::MixtureSpec& mixture = refused[2].arch.mixture;
    mixture.num_experts = 8, mixture.top_k = 2, mixture.aux_loss_coef = 0.01;
    refused[3].arch.qk_norm = spec::QkNorm::kWhole;
  }
};

/// Each divides a run of two devices in one of the ways that a row may name.
const std::vector<config::ParallelConfig>& ways() {
  static const std::vector<config::ParallelConfig> ways = {
      {.pp = 2},
      {.strategy = Strategy::kPipeline},
      {.device_map = config::DeviceMap{.rule = "balanced"}, .pp = 2},
      {.tp = 2},
      {.strategy = Strategy::kTensor},
      {.strategy = Strategy::kZero1},
      {.strategy = Strategy::kZero2},
      {.dp_shard = 2}};
  return ways;
}

Run resolved(const config::ParallelConfig& parallel, const ModelHeaders& headers,
             int processes = 2) {
  config::LoadedConfig loaded;
  loaded.config.model.dtype = config::DTypeChoice::kFp32;
  loaded.config.train.batch_size.value = 1;
  loaded.config.parallel = parallel;
  for (const char* key : {"parallel.strategy", "parallel.device_map", "parallel.pp", "parallel.tp",
                          "parallel.dp_shard"})
    loaded.places[key] = fmt::format("run.yaml has {}", key);
  const int world_size = has_device_map(parallel) ? 1 : processes;
  const RunPlace place{.devices = {.memory_bytes = uint64_t{1} << 30,
                                   .world_size = world_size,
                                   .local_world_size = world_size},
                       .device = "cpu"};
  return resolve_run(loaded, "model", &headers, "run.yaml", place);
}

/// Nothing else need ask for a new row, whatever axes it is about.
TEST(RunResolution, RefusesWhatTheTableSaysOfModels) {
  const Models models;
  int refused = 0;
  for (const config::Refusal& row : config::refusals()) {
    if (row.known_by != config::KnownBy::kModel) continue;
    const auto model = std::find_if(models.refused.begin(), models.refused.end(),
                                    [&](const ModelHeaders& headers) {
                                      return row.applies({}, plan::model_facts(headers.arch, {}));
                                    });
    ASSERT_NE(model, models.refused.end()) << "add a model to the test: " << row.message;
    for (const config::ParallelConfig& parallel : ways()) {
      const std::string setting = row.where.setting(parallel);
      if (setting.empty()) continue;
      test::expect_error<ConfigError>(
          [&] { resolved(parallel, *model); },
          {row.message, "run.yaml has " + config::key_of_setting(setting)});
      ++refused;
    }
  }
  EXPECT_EQ(refused, 3 * 3 + 2);
}

/// A size that only the processes, or only the model, can have is no help.
TEST(RunResolution, NamesPartsThatSuitTheModelAndTheProcesses) {
  const ModelHeaders model = read_headers(test::kData / "train/models/tied");  // 4 heads
  const auto refuses = [&](const config::ParallelConfig& parallel, int processes,
                           std::initializer_list<std::string> parts) {
    test::expect_error<ConfigError>([&] { resolved(parallel, model, processes); }, parts);
  };
  refuses({.tp = 3}, 8,
          {"4 attention heads, which cannot be divided by 3", "run.yaml has parallel.tp",
           "set parallel.tp to 2 or 4, or use, without parallel.tp,"});
  refuses({.pp = 2, .tp = 3}, 4, {"divided by 3", "set parallel.tp to 2, or use"});
  refuses({.strategy = Strategy::kTensor}, 8,
          {"divided by 8", "run.yaml has parallel.strategy", "set parallel.tp to 2 or 4, or use"});
  refuses({.tp = 2}, 3,
          {"parallel.tp 2 does not divide the 3 processes of the run",
           "fix: use, without parallel.tp, parallel.strategy fsdp or pipeline, or start "
           "a multiple of 2 processes"});
  refuses({.tp = 4}, 6, {"does not divide the 6 processes", "set parallel.tp to 2, or use"});
  refuses({.pp = 4, .tp = 4}, 4, {"need 16 processes, and the run has 4", "or start"});
}

/// Before anything is loaded: blocks of files, and those that will be made.
TEST(RunResolution, RefusesPartsThatSplitBlocks) {
  const ModelHeaders model = read_headers(test::kModels / "tied-gqa");
  const auto with = [&](config::TuningMode mode, const ModelHeaders& headers) {
    config::LoadedConfig loaded;
    loaded.config.model.dtype = config::DTypeChoice::kFp32;
    loaded.config.train.batch_size.value = 1;
    loaded.config.tuning.mode = mode;
    loaded.config.parallel.tp = 2;
    loaded.places["parallel.tp"] = "run.yaml has parallel.tp";
    return resolve_run(
        loaded, "model", &headers, "run.yaml",
        {.devices = {.memory_bytes = uint64_t{1} << 30, .world_size = 4, .local_world_size = 4},
         .device = "cpu"});
  };
  using enum config::TuningMode;
  EXPECT_NO_THROW(with(kLora, model));
  const std::initializer_list<std::string> parts = {
      "o_proj.weight has", "stores blocks of 64 values", "run.yaml has parallel.tp",
      "parallel.strategy fsdp"};
  test::expect_error<ConfigError>([&] { with(kQlora, model); }, parts);
  ModelHeaders packed = model;
  packed.knows_form = true, packed.block_kinds = {"stored"};
  packed.blocks["model.layers.1.self_attn.o_proj.weight"] = 64;
  test::expect_error<ConfigError>([&] { with(kLora, packed); }, parts);
}

TEST(RunResolution, RefusesNoneOfTheseAxesToADenseModel) {
  const Models models;
  for (const config::ParallelConfig& parallel : ways())
    EXPECT_NO_THROW(resolved(parallel, models.dense)) << strategy_name(parallel.strategy);
}

}  // namespace
}  // namespace sftrun::app
