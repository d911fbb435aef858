#include "sftrun/config/axes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sftrun/config/run_config.h"
#include "support/expect_error.h"

namespace sftrun::config {
namespace {

using enum Strategy;

std::string described(const ParallelConfig& parallel, int world_size, int local_world_size = 8) {
  return describe(axes_of(parallel, world_size, local_world_size));
}

/// Loops over the rows give what the members of Axes are for.
TEST(Axes, AreThoseOfTheTable) {
  const Axes axes{.pp = 2, .dp_replicate = 3, .dp_shard = 5, .cp = 11, .tp = 7};
  const ParallelConfig parallel{.dp_replicate = 3, .dp_shard = 5, .pp = 2, .cp = 11, .tp = 7};
  int64_t parts = 1;
  std::vector<std::string> names;
  for (const AxisRow& row : axis_rows()) {
    names.emplace_back(row.name);
    EXPECT_EQ(&row_of(row.axis), &row);
    EXPECT_EQ(std::string(row.key), "parallel." + names.back());
    EXPECT_EQ(parallel.*row.asked, axes.*row.ranks) << row.name;
    if (row.divides_batches) parts *= axes.*row.ranks;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"pp", "dp_replicate", "dp_shard", "cp", "tp"}));
  EXPECT_EQ(parts, axes.data_parts());
}

TEST(Axes, SayWhatComputesAPartOfABatch) {
  const auto part = [](const Axes& axes) {
    return fmt::format("{} of {}", axes.part_word(), axes.devices_of_part());
  };
  EXPECT_EQ(part({.dp_replicate = 2, .dp_shard = 2}), "process of 1");
  EXPECT_EQ(part({.pp = 2, .dp_shard = 2}), "pipeline of 2");
  EXPECT_EQ(part({.pp = 1, .stages_in_process = true}), "pipeline of 1");
  EXPECT_EQ(part({.dp_replicate = 2, .tp = 4}), "group of 4");
  EXPECT_EQ(part({.dp_replicate = 2, .cp = 4}), "group of 4");
  EXPECT_EQ(part({.pp = 2, .cp = 2}), "group of 4");
  EXPECT_EQ(part({.pp = 2, .dp_shard = 3, .tp = 4}), "group of 8");
}

TEST(Axes, OfAStrategyAlone) {
  EXPECT_EQ(described({.strategy = kAuto}, 1), "single");
  EXPECT_EQ(described({.strategy = kDdp}, 4), "ddp 4");
  EXPECT_EQ(described({.strategy = kZero1}, 4), "zero1 4");
  EXPECT_EQ(described({.strategy = kZero2}, 4), "zero2 4");
  EXPECT_EQ(described({.strategy = kZero3}, 4), "fsdp 4");
  EXPECT_EQ(described({.strategy = kFsdp}, 4), "fsdp 4");
  EXPECT_EQ(described({.strategy = kHybrid}, 16, 8), "fsdp 8 x ddp 2");
  EXPECT_EQ(described({.strategy = kPipeline}, 4), "pipeline 4");
  EXPECT_EQ(described({.strategy = kTensor}, 4), "tensor 4");
  EXPECT_EQ(described({.strategy = kDeviceMap, .pp = 3}, 1), "device_map 3");
}

/// Sizes decide without a strategy, and with one what it leaves open.
TEST(Axes, OfSizes) {
  EXPECT_EQ(described({.dp_shard = 4, .tp = 2}, 8), "fsdp 4 x tensor 2");
  EXPECT_EQ(described({.dp_shard = 2, .tp = 2}, 8), "fsdp 2 x ddp 2 x tensor 2");
  EXPECT_EQ(described({.pp = 2, .tp = 2}, 8), "pipeline 2 x ddp 2 x tensor 2");
  EXPECT_EQ(described({.dp_shard = 2, .pp = 2}, 4), "pipeline 2 x fsdp 2");
  EXPECT_EQ(described({.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 8), "fsdp 2 x ddp 2 x tensor 2");
  EXPECT_EQ(described({.strategy = kFsdp, .tp = 2}, 8), "fsdp 4 x tensor 2");
  EXPECT_EQ(described({.strategy = kFsdp, .dp_replicate = 2}, 8), "fsdp 4 x ddp 2");
  EXPECT_EQ(described({.strategy = kZero1, .pp = 2}, 8), "pipeline 2 x zero1 4");
  EXPECT_EQ(described({.strategy = kPipeline, .tp = 2}, 8), "pipeline 4 x tensor 2");
  EXPECT_EQ(described({.strategy = kTensor, .dp_shard = 4}, 8), "fsdp 4 x tensor 2");
  EXPECT_EQ(described({.strategy = kHybrid, .tp = 2}, 16, 8), "fsdp 4 x ddp 2 x tensor 2");
  EXPECT_EQ(described({.cp = 2}, 2), "context 2");
  EXPECT_EQ(described({.cp = 2}, 8), "ddp 4 x context 2");
  EXPECT_EQ(described({.strategy = kFsdp, .cp = 4}, 8), "fsdp 2 x context 4");
  EXPECT_EQ(described({.strategy = kHybrid, .cp = 2, .tp = 2}, 16, 8),
            "fsdp 2 x ddp 2 x context 2 x tensor 2");
}

/// Ranks that share sequences own the same values, so one copy is divided over them, too.
TEST(Axes, ShardOverTheRanksThatShareSequences) {
  EXPECT_EQ(axes_of({.strategy = kFsdp, .cp = 4}, 8, 8).shards(), 8);
  EXPECT_EQ(axes_of({.strategy = kFsdp, .cp = 4}, 8, 8).data_parts(), 2);
  EXPECT_EQ(axes_of({.cp = 4}, 8, 8).shards(), 1);
}

TEST(Axes, ThatDoNotDivideNameASizeThatDoes) {
  using test::expect_error;
  const std::map<std::string, std::string> places = {{"parallel.tp", "run.yaml:4:3"}};
  expect_error<ConfigError>([&] { axes_of({.tp = 3}, 8, 8, places); },
                            {"parallel.tp 3 does not divide the 8 processes of the run",
                             "run.yaml:4:3", "set parallel.tp to 2 or 4"});
  expect_error<ConfigError>([&] { axes_of({.pp = 2, .tp = 3}, 8, 8, places); },
                            {"parallel.pp 2 x parallel.tp 3 = 6 does not divide the 8 processes",
                             "set parallel.tp to 2 or 4, ", "; or start 6 or 12 processes"});
  expect_error<ConfigError>([&] { axes_of({.dp_replicate = 2, .dp_shard = 2}, 8, 8); },
                            {"8 processes with dp_shard 2 have room for 4 copies",
                             "parallel.dp_replicate is 2", "set parallel.dp_replicate to 4"});
  expect_error<ConfigError>([&] { axes_of({.dp_replicate = 3, .dp_shard = 8}, 8, 8); },
                            {"8 processes with dp_shard 8 have room for 1 copy of"});
}

TEST(Axes, OfTooFewProcessesNameTheirProduct) {
  using test::expect_error;
  const std::map<std::string, std::string> places = {{"parallel.pp", "run.yaml:3:3"},
                                                     {"parallel.tp", "run.yaml:4:3"}};
  expect_error<ConfigError>([&] { axes_of({.pp = 4, .tp = 4}, 4, 4, places); },
                            {"parallel.pp 4 x parallel.tp 4 need 16 processes, and the run has 4",
                             "run.yaml:3:3; run.yaml:4:3", "start 16 processes"});
  expect_error<ConfigError>([&] { axes_of({.pp = 8}, 4, 4, places); },
                            {"parallel.pp 8 needs 8 processes, and the run has 4",
                             "set parallel.pp to 4, ", "; or start 8 processes"});
  // What follows from the strategy is not named.
  expect_error<ConfigError>([&] { axes_of({.strategy = kPipeline, .tp = 3}, 8, 8, places); },
                            {"parallel.tp 3 does not divide the 8 processes of the run"});
  expect_error<ConfigError>([&] { axes_of({.strategy = kFsdp, .dp_replicate = 3}, 8, 8); },
                            {"parallel.dp_replicate 3 does not divide the 8 processes"});
  constexpr int64_t kMax = 65536;
  expect_error<ConfigError>(
      [&] { axes_of({.dp_replicate = kMax, .dp_shard = kMax, .pp = kMax, .tp = kMax}, 8, 8); },
      {"processes, and the run has 8"});
}

TEST(Axes, KnowWhatDividesTheModel) {
  EXPECT_EQ(model_division_setting({.strategy = kFsdp}), "");
  EXPECT_EQ(model_division_setting({.strategy = kFsdp, .tp = 2}), "parallel.tp");
  EXPECT_EQ(model_division_setting({.strategy = kPipeline}), "parallel.strategy: pipeline");
  EXPECT_TRUE(axes_of({.tp = 2}, 2, 2).divides_model());
  EXPECT_FALSE(axes_of({.strategy = kFsdp}, 2, 2).divides_model());
}

}  // namespace
}  // namespace sftrun::config
