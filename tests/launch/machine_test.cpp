// What the machine says of itself: GPUs through a stand-in for NVML (no GPU is needed), processors
// through made-up sysfs files.
#include "sftrun/launch/cpu_topology.h"
#include "sftrun/launch/gpu.h"
#include "sftrun/launch/gpu_meter.h"
#include "sftrun/launch/running.h"
#include "supervised_run.h"

namespace sftrun::launch::testing {
namespace {

class FakeNvml : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"FAKE_NVML_GPUS", "FAKE_NVML_DRIVER", "FAKE_NVML_BROKEN"})
      ::unsetenv(name);
  }
  static GpuReport query() { return query_gpus(SFTRUN_FAKE_NVML); }
};

TEST_F(FakeNvml, ReadsUtilizationAndMemoryOfAGpu) {
  ::setenv("FAKE_NVML_GPUS", "NVIDIA H200,NVIDIA H200", 1);
  const std::string place = query().gpus.at(1).pci_bus_id;
  EXPECT_EQ(GpuMeter(place, SFTRUN_FAKE_NVML).utilization_percent(), 37);
  EXPECT_EQ(GpuMeter(place, SFTRUN_FAKE_NVML).used_bytes(), 20ull << 30);
  EXPECT_EQ(GpuMeter("00000000:01:00.0", SFTRUN_FAKE_NVML).utilization_percent(), std::nullopt);
  EXPECT_EQ(GpuMeter("00000000:01:00.0", SFTRUN_FAKE_NVML).used_bytes(), std::nullopt);
  EXPECT_EQ(GpuMeter(place, "libno-such-thing.so").utilization_percent(), std::nullopt);
}

TEST_F(FakeNvml, DescribesEveryGpu) {
  ::setenv("FAKE_NVML_GPUS", "NVIDIA H200,Tesla V100-SXM2-32GB,NVIDIA H200", 1);
  const GpuReport report = query();
  ASSERT_EQ(report.gpus.size(), 3u);
  EXPECT_EQ(report.driver_version, "580.65.06");
  EXPECT_EQ(report.cuda_driver_version, 13000);
  EXPECT_EQ(report.problem, "");
  const GpuInfo& gpu = report.gpus[0];
  EXPECT_EQ(gpu.name, "NVIDIA H200");
  EXPECT_EQ(gpu.uuid, "GPU-0aaaaaaa-0000");
  EXPECT_EQ(gpu.pci_bus_id, "00000000:81:00.0");
  EXPECT_EQ(gpu.memory_total_bytes, 80ull << 30);
  EXPECT_EQ(gpu.memory_free_bytes, 60ull << 30);
  EXPECT_EQ(gpu.utilization_percent, 37);
  EXPECT_EQ(gpu.temperature_c, 45);
  EXPECT_DOUBLE_EQ(gpu.power_w.value(), 123.4);
  EXPECT_EQ(gpu.power_limit_w, std::nullopt);  // not supported by this card
  EXPECT_EQ(gpu.sm_clock_mhz, 1410);
  EXPECT_EQ(gpu.memory_clock_mhz, 2619);
  EXPECT_EQ(gpu.pcie_gen, 4);
  EXPECT_EQ(gpu.pcie_gen_max, 5);
  EXPECT_EQ(gpu.pcie_width, 16);
  EXPECT_EQ(gpu.pcie_width_max, std::nullopt);  // not in this driver
  EXPECT_EQ(gpu.num_nvlinks, 2);
  EXPECT_FALSE(gpu.is_too_old());
  EXPECT_TRUE(report.gpus[1].is_too_old());
  EXPECT_EQ(report.links, (std::vector<std::vector<std::string>>{
                              {"X", "NV2", "NODE"}, {"NV2", "X", "NODE"}, {"SYS", "SYS", "X"}}));
  using Access = std::vector<std::optional<bool>>;
  EXPECT_EQ(report.peer_access,
            (std::vector<Access>{{true, true, false}, {true, true, false}, {false, false, true}}));
}

/// What CUDA_VISIBLE_DEVICES with this value leaves of three GPUs.
GpuVisibility visibility_with(const char* setting) {
  ::setenv("FAKE_NVML_GPUS", "NVIDIA H200,NVIDIA H200,NVIDIA H200", 1);
  ::setenv("CUDA_VISIBLE_DEVICES", setting, 1);
  const auto found = gpu_visibility(query_gpus(SFTRUN_FAKE_NVML));
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(found.value().setting, setting);
  return found.value();
}

TEST_F(FakeNvml, TheVariableHidesGpus) {
  using Gpus = std::vector<size_t>;
  ::setenv("FAKE_NVML_GPUS", "NVIDIA H200", 1);
  EXPECT_EQ(gpu_visibility(query()), std::nullopt) << "not set";
  EXPECT_EQ(visibility_with("2,0").visible, (Gpus{2, 0}));
  EXPECT_EQ(visibility_with("2,0").hidden, (Gpus{1}));
  EXPECT_EQ(visibility_with("2, 0").problem, "");
  EXPECT_EQ(visibility_with("GPU-2").visible, (Gpus{2})) << "the beginning of a UUID";
  for (const char* none : {"", "-1", " "}) {
    EXPECT_EQ(visibility_with(none).hidden, (Gpus{0, 1, 2})) << none;
    EXPECT_EQ(visibility_with(none).problem, "") << none;
  }
  EXPECT_EQ(visibility_with("1,7,0").visible, (Gpus{1})) << "what follows a wrong entry is hidden";
  EXPECT_NE(visibility_with("1,7,0").problem.find("`7`"), std::string::npos);
  EXPECT_EQ(visibility_with("1,1").hidden, (Gpus{0, 1, 2}));
  EXPECT_NE(visibility_with("1,1").problem.find("twice"), std::string::npos);
}

TEST_F(FakeNvml, TheVariableMayNameASlice) {
  using Gpus = std::vector<size_t>;
  const GpuVisibility old_name = visibility_with("MIG-GPU-1aaaaaaa-0000/2/0");
  EXPECT_EQ(old_name.mig_slice, "MIG-GPU-1aaaaaaa-0000/2/0");
  EXPECT_EQ(old_name.visible, (Gpus{1}));
  EXPECT_EQ(old_name.hidden, (Gpus{0, 2}));
  const GpuVisibility name = visibility_with("MIG-41b35a0d-4a50-5b6a-b9a5-2bf1a7d2a6c0");
  EXPECT_EQ(name.mig_slice, "MIG-41b35a0d-4a50-5b6a-b9a5-2bf1a7d2a6c0");
  EXPECT_TRUE(name.visible.empty() && name.hidden.empty()) << "it may be on any of them";
}

TEST_F(FakeNvml, ListsTheProcessesOfAGpu) {
  ::setenv("FAKE_NVML_GPUS", "NVIDIA H200,NVIDIA H200", 1);
  ::setenv("FAKE_NVML_PID", "77", 1);
  const GpuReport report = query();
  ::unsetenv("FAKE_NVML_PID");
  ASSERT_EQ(report.gpus[0].processes.size(), 2u);
  EXPECT_EQ(report.gpus[0].processes[0].pid, 77);
  EXPECT_EQ(report.gpus[0].processes[0].used_bytes, 18ull << 30);
  EXPECT_EQ(report.gpus[0].processes[1].used_bytes, std::nullopt);
  EXPECT_TRUE(report.gpus[1].processes.empty());
}

/// A made-up /proc.
class Processes {
 public:
  /// @param run_dir whose lock the process holds; "": none
  void add(int pid, int parent, const std::string& program, const std::string& environment,
           const std::string& run_dir) {
    const std::filesystem::path folder = proc() / std::to_string(pid);
    std::filesystem::create_directories(folder / "fd");
    std::filesystem::create_symlink("/opt/bin/" + program, folder / "exe");
    if (!run_dir.empty()) std::filesystem::create_symlink(run_dir + "/.lock", folder / "fd" / "7");
    std::ofstream(folder / "status")
        << "Name:\tsftrun\nPPid:\t" << parent << "\nVmRSS:\t    2048 kB\n";
    std::ofstream(folder / "environ") << environment;
  }
  const std::filesystem::path& proc() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

TEST(RunningRuns, AreTheLocksAndTheirWorkers) {
  using namespace std::string_literals;
  Processes made;
  made.add(10, 1, "sftrun", "HOME=/root\0"s, "/data/runs/a");
  made.add(12, 10, "sftrun", "HOME=/root\0RANK=1\0LOCAL_RANK=1\0"s, "");
  made.add(13, 10, "sftrun", "RANK=0\0"s, "");
  made.add(14, 10, "sftrun", "", "/data/runs/a");  // the launcher's guardian has its open files
  made.add(20, 1, "sftrun (deleted)", "RANK=3\0"s, "/data/runs/b");  // started by torchrun
  made.add(30, 1, "python3", "", "/data/runs/c");
  made.add(40, 1, "sftrun", "", "");  // another command
  std::ofstream(made.proc() / "uptime") << "1 2\n";
  const std::vector<RunningRun> runs = running_runs(made.proc());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].run_dir, "/data/runs/a");
  ASSERT_EQ(runs[0].processes.size(), 3u);
  EXPECT_EQ(runs[0].processes[0].pid, 10);
  EXPECT_EQ(runs[0].processes[0].rank, std::nullopt);
  EXPECT_EQ(runs[0].processes[0].resident_bytes, 2048u << 10);
  EXPECT_EQ(runs[0].processes[1].rank, 0);
  EXPECT_EQ(runs[0].processes[2].pid, 12);
  EXPECT_EQ(runs[1].run_dir, "/data/runs/b");
  EXPECT_EQ(runs[1].processes[0].rank, 3);
  EXPECT_TRUE(running_runs(made.proc() / "none").empty());
}

TEST_F(FakeNvml, ADriverTooOldForCuda13IsNamed) {
  ::setenv("FAKE_NVML_GPUS", "NVIDIA H200", 1);
  EXPECT_EQ(driver_complaint(query()), "");
  ::setenv("FAKE_NVML_DRIVER", "535.104.05", 1);
  EXPECT_EQ(driver_complaint(query()),
            "NVIDIA driver 535.104.05 is too old for CUDA 13, which needs 580 or newer");
  EXPECT_EQ(driver_complaint({}), "");
}

TEST_F(FakeNvml, ReportsAMissingGpuAndAMissingOrBrokenDriver) {
  EXPECT_EQ(query().problem, "the NVIDIA driver reports no GPU");
  ::setenv("FAKE_NVML_BROKEN", "1", 1);
  EXPECT_EQ(query().problem, "the NVIDIA driver does not respond: Driver/library version mismatch");
  EXPECT_EQ(query_gpus("libno-such-thing.so").problem,
            "no NVIDIA driver found (libno-such-thing.so is not installed)");
}

TEST(CpuLists, ReadAndWritten) {
  EXPECT_EQ(parse_cpu_list("0-3,8"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list(""), std::vector<int>{});
  EXPECT_EQ(format_cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(parse_cpu_list(format_cpu_list(allowed_cpus())), allowed_cpus());
}

/// Two sockets, two cores each, two hardware threads a core: CPU n and n + 4 share a core.
class FakeSysfs : public ::testing::Test {
 protected:
  void SetUp() override {
    write("node/online", "0-1");
    write("node/node0/cpulist", "0-1,4-5");
    write("node/node1/cpulist", "2-3,6-7");
    write("cpu/online", "0-7");
    for (int cpu = 0; cpu < 8; ++cpu) {
      const std::string topology = "cpu/cpu" + std::to_string(cpu) + "/topology/";
      write(topology + "physical_package_id", cpu % 4 < 2 ? "0" : "1");
      write(topology + "core_id", std::to_string(cpu % 2));
    }
  }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_.path() / name).parent_path());
    std::ofstream(root_.path() / name) << text << "\n";
  }
  std::vector<Cpu> topology(const std::vector<int>& ids) const {
    return cpu_topology(ids, root_.path());
  }

  TemporaryDirectory root_;
  const std::vector<int> all_ = {0, 1, 2, 3, 4, 5, 6, 7};
};

TEST_F(FakeSysfs, ThreadsOfACoreAreAdjacent) {
  std::vector<int> order;
  for (const Cpu& cpu : topology(all_)) order.push_back(cpu.id);
  EXPECT_EQ(order, (std::vector<int>{0, 4, 1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(topology({6}), (std::vector<Cpu>{{.id = 6, .node = 1, .package = 1, .core = 0}}));
  EXPECT_EQ(num_physical_cores(root_.path()), 4);
}

TEST_F(FakeSysfs, AssignsWholeCores) {
  using Dealt = std::vector<std::vector<int>>;
  EXPECT_EQ(deal_cpus(topology(all_), {-1, -1}), (Dealt{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(deal_cpus(topology(all_), {-1, -1, -1}), (Dealt{{0, 4}, {1, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(deal_cpus(topology(all_), {1, 0}),
            (Dealt{{2, 3, 6, 7}, {0, 1, 4, 5}}));  // beside their GPUs
  EXPECT_EQ(deal_cpus(topology({2, 3, 6, 7}), {-1, -1}),
            (Dealt{{2, 6}, {3, 7}}));  // an existing mask
}

TEST_F(FakeSysfs, NoBindingIfItWouldBeSlower) {
  EXPECT_TRUE(deal_cpus(topology(all_), {-1}).empty());
  EXPECT_TRUE(deal_cpus(topology({0, 1}), {-1, -1}).empty());       // one CPU each
  EXPECT_TRUE(deal_cpus(topology({0, 4, 1, 5}), {0, 1}).empty());   // none beside the second GPU
  EXPECT_TRUE(deal_cpus(topology(all_), {0, 0, 0, 0, 0}).empty());  // more workers than cores
}

TEST(CpuFeatures, AreReadFromCpuinfo) {
  const TemporaryDirectory root;
  std::ofstream(root.path() / "cpuinfo")
      << "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n";
  EXPECT_EQ(cpu_features(root.path()),
            (std::vector<std::string>{"avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"}));
  EXPECT_TRUE(cpu_features("/nonexistent").empty());
}

}  // namespace
}  // namespace sftrun::launch::testing
