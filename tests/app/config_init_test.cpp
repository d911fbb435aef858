#include "config_init.h"

#include <gtest/gtest.h>

namespace sftrun::app {
namespace {

launch::GpuInfo gpu(int index, const char* name, int major, uint64_t gib) {
  return {.index = index,
          .name = name,
          .compute_major = major,
          .compute_minor = major == 7 ? 5 : 0,
          .memory_total_bytes = gib << 30};
}

MachineView machine(std::vector<launch::GpuInfo> gpus) {
  return {.gpus = std::move(gpus),
          .can_use_gpus = true,
          .memory = {.total_bytes = uint64_t{64} << 30},
          .cpus = 8};
}

/// `train` refuses them.
TEST(MachineViews, OldGpusAreNotSuggested) {
  const MachineView old = machine({gpu(0, "Tesla T4", 7, 15)});
  EXPECT_FALSE(old.trains_on_gpu());
  EXPECT_EQ(old.suggested_devices(), "cpu");
  EXPECT_EQ(old.device_bytes(), uint64_t{64} << 30);
  EXPECT_NE(old.text().find("1 GPU (Tesla T4), too old to train on"), std::string::npos)
      << old.text();
  const MachineView mixed = machine({gpu(0, "A100", 8, 80), gpu(1, "Tesla T4", 7, 15)});
  EXPECT_EQ(mixed.suggested_devices(), "1");
  EXPECT_EQ(mixed.device_bytes(), uint64_t{80} << 30);
  EXPECT_NE(mixed.text().find("1 too old to train on"), std::string::npos) << mixed.text();
  const MachineView between =
      machine({gpu(0, "A100", 8, 80), gpu(1, "Tesla T4", 7, 15), gpu(2, "A100", 8, 80)});
  EXPECT_EQ(between.suggested_devices(), "0,2");
  const MachineView second = machine({gpu(0, "Tesla T4", 7, 15), gpu(1, "A100", 8, 80)});
  EXPECT_EQ(second.suggested_devices(), "1,");
  MachineView of_hidden = machine({gpu(5, "A100", 8, 80), gpu(0, "Tesla T4", 7, 15)});
  of_hidden.num_hidden_gpus = 4;
  EXPECT_EQ(of_hidden.suggested_devices(), "1") << "numbers of what CUDA shows";
  EXPECT_NE(of_hidden.text().find("(4 hidden by CUDA_VISIBLE_DEVICES)"), std::string::npos)
      << of_hidden.text();
  const MachineView current = machine({gpu(0, "H100", 9, 80), gpu(1, "H100", 9, 80)});
  EXPECT_EQ(current.suggested_devices(), "auto");
  EXPECT_TRUE(current.trains_on_gpu());
  EXPECT_EQ(machine({}).suggested_devices(), "auto");
}

}  // namespace
}  // namespace sftrun::app
