#include "sftrun/launch/machine_check.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include "support/temporary_directory.h"

namespace sftrun::launch {
namespace {

constexpr uint64_t kGiB = 1ULL << 30;

/// A machine with `count` GPUs on which nothing is wrong.
MachineState good_machine(size_t count) {
  MachineState state{.has_cuda_kernels = true,
                     .nccl_version = "2.28.9",
                     .cpu_model = "CPU",
                     .logical_cpus = 64,
                     .allowed_cpus = 64,
                     .available_cpus = 64,
                     .cpu_features = {"avx2"},
                     .memory = {.total_bytes = 512 * kGiB, .available_bytes = 500 * kGiB},
                     .disks = {{"runs", "/data", 900 * kGiB}},
                     .shm_free_bytes = 32 * kGiB,
                     .limits = {.open_files = 65536},
                     .interfaces = {"lo", "eth0"},
                     .year = 2026};
  for (size_t i = 0; i < count; ++i)
    state.gpus.gpus.push_back(
        {.index = static_cast<int>(i), .name = "NVIDIA H100", .compute_major = 9});
  state.gpus.driver_version = count > 0 ? "580.65.06" : "";
  state.gpus.problem = count > 0 ? "" : "no NVIDIA driver was found";
  state.gpus.links.assign(count, std::vector<std::string>(count, "NV18"));
  state.gpus.peer_access.assign(count, std::vector<std::optional<bool>>(count, true));
  return state;
}

/// "warning open files: at most 256 …" for each check that is not ok.
std::string complaints(const MachineState& state) {
  std::string text;
  for (const Check& check : check_machine(state)) {
    EXPECT_EQ(check.remedy.empty(), check.verdict == Verdict::kOk) << check.name;
    if (check.verdict == Verdict::kOk) continue;
    text += fmt::format("{} {}: {}\n", verdict_name(check.verdict), check.name, check.finding);
  }
  return text;
}

void expect_one_complaint(const MachineState& state, const std::string& begin) {
  const std::string text = complaints(state);
  EXPECT_TRUE(text.starts_with(begin)) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(MachineCheck, AGoodMachineHasNoComplaint) {
  EXPECT_EQ(complaints(good_machine(0)), "");
  EXPECT_EQ(complaints(good_machine(1)), "");
  EXPECT_EQ(complaints(good_machine(8)), "");
}

TEST(MachineCheck, SaysPlainlyThatThereIsNoGpu) {
  const auto checks = check_machine(good_machine(0));
  const auto gpus = std::find_if(checks.begin(), checks.end(),
                                 [](const Check& check) { return check.name == "GPUs"; });
  ASSERT_NE(gpus, checks.end());
  EXPECT_EQ(gpus->finding,
            "no GPU was found: no NVIDIA driver was found; training runs on the CPU");
}

TEST(MachineCheck, FindsWhatIsWrongWithGpus) {
  MachineState state = good_machine(2);
  state.gpus.driver_version = "535.54.03";
  expect_one_complaint(state, "problem driver: NVIDIA driver 535.54.03 is too old");
  state.gpus.driver_version = "";
  expect_one_complaint(state, "problem driver: there are NVIDIA GPUs, but the driver's library");

  state = good_machine(2);
  state.has_cuda_kernels = false;
  expect_one_complaint(state, "problem GPUs: 2 GPUs found, but sftrun was built without CUDA");

  state = good_machine(2);
  state.gpus.gpus[1].compute_major = 7;
  expect_one_complaint(state, "problem GPUs: GPU 1 (NVIDIA H100) is older than sm_80");

  state = good_machine(2);
  state.gpus.gpus[1].name = "NVIDIA A100";
  expect_one_complaint(state, "warning GPUs: GPU 1 is another model");

  state = good_machine(2);
  state.nccl_version = "";
  expect_one_complaint(state, "warning NCCL: NCCL was not found");
}

TEST(MachineCheck, FindsSlowConnections) {
  MachineState state = good_machine(3);
  state.gpus.peer_access[0][2] = false;
  expect_one_complaint(state,
                       "warning peer access: the driver allows no direct copies between GPUs 0-2");
  state = good_machine(3);
  state.gpus.links[1][2] = "SYS";
  expect_one_complaint(state,
                       "warning peer access: GPUs 1-2 are connected through the link between");
  state = good_machine(3);
  state.gpus.peer_access.assign(3, std::vector<std::optional<bool>>(3));  // unknown is no complaint
  EXPECT_EQ(complaints(state), "");
}

TEST(MachineCheck, FindsGpusThatAreSlowOrInUse) {
  MachineState state = good_machine(1);
  GpuInfo& gpu = state.gpus.gpus[0];
  gpu.sm_clock_max_mhz = 1980, gpu.sm_clock_mhz = 600, gpu.utilization_percent = 0;
  EXPECT_EQ(complaints(state), "");  // idle GPUs lower their clock
  gpu.utilization_percent = 99;
  expect_one_complaint(state, "warning clocks: GPU 0 runs at 600 of 1980 MHz while it works");
  gpu = good_machine(1).gpus.gpus[0];
  gpu.temperature_c = 91;
  expect_one_complaint(state, "warning clocks: GPU 0 has 91 °C");
  gpu = good_machine(1).gpus.gpus[0];
  gpu.pcie_width = 4, gpu.pcie_width_max = 16;
  expect_one_complaint(state, "warning PCIe: GPU 0 is connected with PCIe x4 of x16");
  gpu = good_machine(1).gpus.gpus[0];
  gpu.memory_free_bytes = 10 * kGiB, gpu.memory_total_bytes = 80 * kGiB;
  expect_one_complaint(state, "warning GPU memory: GPU 0 has 10.00 GiB of 80.00 GiB free");
}

TEST(MachineCheck, FindsLimits) {
  MachineState state = good_machine(8);
  state.limits.open_files = 1024;
  expect_one_complaint(state, "warning open files: at most 1024");
  state = good_machine(8);
  state.limits.locked_memory_bytes = 64 << 10;
  EXPECT_EQ(complaints(state), "");
  state.has_infiniband = true;
  expect_one_complaint(state,
                       "problem locked memory: at most 64.00 KiB, and InfiniBand registers more");
  state = good_machine(8);
  state.limits.processes = 100;
  expect_one_complaint(state, "warning processes: at most 100");
  state = good_machine(8);
  state.shm_free_bytes = 64 << 20;
  expect_one_complaint(state, "warning /dev/shm: 64.00 MiB free");
  state.shm_free_bytes.reset();
  expect_one_complaint(state, "problem /dev/shm: not found");
  state = good_machine(8);
  state.available_cpus = 4;
  expect_one_complaint(state,
                       "warning CPU: CPU: 4 of 64 logical processors may be used, fewer than two");
  state = good_machine(8);
  state.memory.available_bytes = kGiB;
  expect_one_complaint(state, "warning memory: 1.00 GiB available");
  state = good_machine(8);
  state.disks[0].free_bytes = 5 * kGiB;
  expect_one_complaint(state, "warning disk: 5.00 GiB free for runs in /data");
  state.disks[0].free_bytes = 5;
  expect_one_complaint(state, "problem disk: 5 B free for runs in /data");
}

TEST(MachineCheck, FindsSettingsThatSlowRunsDown) {
  for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE",
                           "CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS"}) {
    MachineState state = good_machine(2);
    state.env[name] = "1";
    expect_one_complaint(state, fmt::format("warning environment: {}=1: ", name));
  }
  MachineState state = good_machine(2);
  state.env["CUDA_VISIBLE_DEVICES"] = "";
  expect_one_complaint(state, "warning environment: CUDA_VISIBLE_DEVICES is empty");
  state = good_machine(0);
  state.env["GLOO_SOCKET_IFNAME"] = "ib7";
  expect_one_complaint(state,
                       "problem network: GLOO_SOCKET_IFNAME=ib7, and no such interface is up");
  for (const char* names : {"ib7", "=eth", "^eth,lo"}) {
    state = good_machine(0);
    state.interfaces = {"lo", "eth0"};
    state.env["NCCL_SOCKET_IFNAME"] = names;
    expect_one_complaint(state, fmt::format("problem network: NCCL_SOCKET_IFNAME={} leaves no "
                                            "interface that is up",
                                            names));
  }
  state = good_machine(0);
  state.interfaces = {"eth0"};
  expect_one_complaint(state, "problem network: the loopback interface is down");
  state = good_machine(0);
  state.year = 1970;
  expect_one_complaint(state, "warning date: the system's clock says 1970");
}

TEST(MachineState, ReadsThisMachine) {
  const test::TemporaryDirectory dir;
  const MachineState state = read_machine_state({{"runs", dir / "not/there/yet"}});
  ASSERT_EQ(state.disks.size(), 1u);
  EXPECT_EQ(state.disks[0].path, dir.path());  // the nearest that exists
  EXPECT_GT(state.disks[0].free_bytes, 0u);
  EXPECT_NE(std::find(state.interfaces.begin(), state.interfaces.end(), "lo"),
            state.interfaces.end());
  EXPECT_EQ(state.limits.open_files.value_or(0), static_cast<uint64_t>(::sysconf(_SC_OPEN_MAX)));
  EXPECT_GE(state.logical_cpus, 1);
  EXPECT_GE(state.year, 2025);
}

}  // namespace
}  // namespace sftrun::launch
