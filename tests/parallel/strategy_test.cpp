#include "sftrun/parallel/strategy.h"

#include <gtest/gtest.h>

/// What a run's configuration asks of its strategy.
namespace sftrun::parallel {
namespace {

const Mesh kTwoShards({.dp_shard = 2}, 0);
const at::Device kGpu(at::kCUDA, 0);

TEST(ConfiguredStrategy, ShardsFollowTheLevel) {
  config::ParallelConfig config;
  EXPECT_EQ(shards_of(config, at::kCPU, kTwoShards), nullptr) << "whole parameters";
  config.axes.level = config::ShardLevel::kOptimizer;
  const auto state = shards_of(config, at::kCPU, kTwoShards);
  ASSERT_NE(state, nullptr);
  EXPECT_FALSE(state->sharding().gradients || state->sharding().parameters);
  config.axes.level = config::ShardLevel::kGradients;
  EXPECT_TRUE(shards_of(config, at::kCPU, kTwoShards)->sharding().gradients);
  config.axes.level = config::ShardLevel::kWeights;
  const auto weights = shards_of(config, at::kCPU, kTwoShards);
  EXPECT_TRUE(weights->sharding().gradients && weights->sharding().parameters);
  EXPECT_TRUE(weights->takes_frozen());
  EXPECT_EQ(weights->mesh().sizes(), kTwoShards.sizes());
}

TEST(ConfiguredStrategy, OffloadMovesWhatAGpuWouldHold) {
  config::ParallelConfig config;
  config.offload.base = config::Offload::kCpu;
  EXPECT_EQ(shards_of(config, at::kCPU, kTwoShards), nullptr) << "it is in host memory anyway";
  const auto frozen = shards_of(config, kGpu, kTwoShards);
  ASSERT_NE(frozen, nullptr);
  EXPECT_TRUE(frozen->sharding().frozen_on_host);
  EXPECT_FALSE(frozen->sharding().trained_on_host);
  config.offload = {};
  config.offload.params = config::Offload::kCpu;
  const auto trained = shards_of(config, kGpu, kTwoShards);
  ASSERT_NE(trained, nullptr);
  EXPECT_TRUE(trained->sharding().trained_on_host);
  EXPECT_FALSE(trained->sharding().frozen_on_host);
}

TEST(ConfiguredStrategy, OptionsFollowTheConfiguration) {
  config::RunConfig config;
  config.parallel.strategy = config::Strategy::kFsdp;
  config.train.ddp_bucket_cap_mb = 3;
  StrategyOptions options = strategy_options(config, /*trains_base=*/true, false);
  EXPECT_EQ(options.name, "fsdp");
  EXPECT_EQ(options.bucket_cap_bytes, 3 << 20);
  EXPECT_EQ(options.gradients_sent_as, at::kFloat);
  EXPECT_TRUE(options.overlaps_reduction);
  EXPECT_FALSE(options.passes_read_masters) << "they read copies in the compute dtype";
  EXPECT_TRUE(strategy_options(config, true, /*backend_reads_masters=*/true).passes_read_masters);
  config.train.ddp_comm_hook = config::CommHook::kBf16;
  options = strategy_options(config, /*trains_base=*/false, false);
  EXPECT_EQ(options.gradients_sent_as, at::kBFloat16);
  EXPECT_FALSE(options.overlaps_reduction);
  EXPECT_TRUE(options.passes_read_masters) << "A and B of an adapter";
}

}  // namespace
}  // namespace sftrun::parallel
