#include "sftrun/config/optimizers.h"

#include <gtest/gtest.h>

#include <set>

#include "sftrun/config/optimizer_state.h"

namespace sftrun::config {
namespace {

TEST(OptimizerRows, NamesAreTakenOnce) {
  std::set<std::string_view> names;
  for (const OptimizerInfo& info : kOptimizers) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    for (const std::string_view alias : info.aliases)
      EXPECT_TRUE(names.insert(alias).second) << alias;
  }
}

TEST(OptimizerRows, SettingsAreKeysOfTrain) {
  const nlohmann::ordered_json train = to_json(RunConfig{})["train"];
  for (const OptimizerInfo& info : kOptimizers)
    for (const std::string_view setting : info.settings)
      EXPECT_TRUE(train.contains(setting)) << info.name << ": " << setting;
  EXPECT_EQ(optimizer_settings(),
            (std::vector<std::string_view>{"adam_beta1", "adam_beta2", "adam_epsilon", "momentum",
                                           "nesterov", "muon_lr"}));
}

TEST(OptimizerRows, OthersWithAHostOrASmallerFormHaveRowsThatFit) {
  const std::vector<int64_t> shape = {128, 64};
  const auto bytes = [&](Optimizer optimizer) {
    return optimizer_state_bytes({.optimizer = optimizer}, TensorRole::kLinear, shape);
  };
  for (const OptimizerInfo& info : kOptimizers) {
    if (info.on_host) {
      EXPECT_TRUE(optimizer_info(*info.on_host).is_on_host()) << info.name;
      EXPECT_EQ(bytes(*info.on_host), bytes(info.optimizer)) << info.name;
      EXPECT_EQ(on_device(*info.on_host), on_device(info.optimizer)) << info.name;
    }
    EXPECT_EQ(info.is_on_host(), info.device_bytes > 0) << info.name;
    if (info.smaller) {
      EXPECT_LT(bytes(*info.smaller), bytes(info.optimizer)) << info.name;
    }
    EXPECT_EQ(info.updates == nullptr, !info.others) << info.name;
  }
}

TEST(OptimizerRows, ReadTheSettingsOfTheOptimizerForOtherTensors) {
  EXPECT_TRUE(optimizer_info(Optimizer::kMuon).reads("adam_beta1"));
  EXPECT_TRUE(optimizer_info(Optimizer::kMuon).reads("momentum"));
  EXPECT_FALSE(optimizer_info(Optimizer::kLion).reads("adam_epsilon"));
}

/// Bytes of a value in docs/optimizers.md.
TEST(OptimizerRows, StateOfATensor) {
  const auto bytes = [](Optimizer optimizer, TensorRole role, std::vector<int64_t> shape) {
    return optimizer_state_bytes({.optimizer = optimizer}, role, shape);
  };
  constexpr auto kLinear = TensorRole::kLinear;
  EXPECT_EQ(bytes(Optimizer::kAdamW, kLinear, {64, 80}), 8 * 5120);
  EXPECT_EQ(bytes(Optimizer::kAdamW8bit, kLinear, {64, 80}), 2 * (5120 + 20 * 4));
  EXPECT_EQ(bytes(Optimizer::kAdamW8bit, TensorRole::kEmbedding, {64, 80}), 8 * 5120);
  EXPECT_EQ(bytes(Optimizer::kSgd, kLinear, {64, 80}), 0);
  EXPECT_EQ(bytes(Optimizer::kLion, kLinear, {64, 80}), 4 * 5120);
  EXPECT_EQ(bytes(Optimizer::kAdafactor, kLinear, {64, 80}), 4 * (64 + 80));
  EXPECT_EQ(bytes(Optimizer::kMuon, kLinear, {64, 80}), 4 * 5120);
  EXPECT_EQ(bytes(Optimizer::kMuon, TensorRole::kNorm, {64}), 8 * 64);
}

}  // namespace
}  // namespace sftrun::config
