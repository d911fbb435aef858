#include "sftrun/observe/system.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "sftrun/core/file.h"
#include "support/temporary_directory.h"

namespace sftrun::observe {
namespace {

/// A made-up /proc and /sys/fs/cgroup.
class FakeMachine {
 public:
  FakeMachine() {
    write("proc/meminfo", "MemTotal:       8000 kB\nMemFree: 100 kB\nMemAvailable:   6000 kB\n");
    write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Test CPU @ 1 GHz\n");
    write("proc/self/cgroup", "0::/outer/inner\n");
  }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((dir_ / name).parent_path());
    write_file_atomically(dir_ / name, text);
  }
  MemoryInfo memory() const { return memory_info(proc(), dir_ / "cgroup"); }
  double cpus() const { return available_cpus(proc(), dir_ / "cgroup"); }
  std::filesystem::path proc() const { return dir_ / "proc"; }

 private:
  test::TemporaryDirectory dir_;
};

TEST(System, MemoryWithoutLimits) {
  const FakeMachine machine;
  EXPECT_EQ(machine.memory().total_bytes, 8000U * 1024);
  EXPECT_EQ(machine.memory().available_bytes, 6000U * 1024);
  EXPECT_FALSE(machine.memory().limited_by_cgroup);
}

TEST(System, UnifiedGroupLimit) {
  FakeMachine machine;
  machine.write("cgroup/outer/inner/memory.max", "max\n");
  machine.write("cgroup/outer/memory.max", "4096000\n");
  machine.write("cgroup/outer/memory.current", "3000000\n");
  machine.write("cgroup/outer/memory.stat", "anon 1\ninactive_file 500000\n");
  EXPECT_EQ(machine.memory().total_bytes, 4096000U);
  EXPECT_EQ(machine.memory().available_bytes, 4096000U - 2500000U);
  EXPECT_TRUE(machine.memory().limited_by_cgroup);
}

TEST(System, AnOuterGroupMayHaveLessRoom) {
  FakeMachine machine;
  machine.write("cgroup/outer/inner/memory.max", "1000000\n");
  machine.write("cgroup/outer/inner/memory.current", "0\n");
  machine.write("cgroup/outer/memory.max", "2000000\n");
  machine.write("cgroup/outer/memory.current", "1900000\n");
  EXPECT_EQ(machine.memory().total_bytes, 1000000U);
  EXPECT_EQ(machine.memory().available_bytes, 100000U);
}

TEST(System, OldHierarchyLimit) {
  FakeMachine machine;
  machine.write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/job\n");
  machine.write("cgroup/memory/job/memory.limit_in_bytes", "1024000\n");
  machine.write("cgroup/memory/job/memory.usage_in_bytes", "24000\n");
  machine.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(machine.memory().total_bytes, 1024000U);
  EXPECT_EQ(machine.memory().available_bytes, 1000000U);
}

TEST(System, CpuQuota) {
  FakeMachine machine;
  const double unlimited = machine.cpus();
  EXPECT_GE(unlimited, 1);
  machine.write("cgroup/outer/cpu.max", "max 100000\n");
  EXPECT_EQ(machine.cpus(), unlimited);
  machine.write("cgroup/outer/cpu.max", "110000 100000\n");
  EXPECT_EQ(machine.cpus(), std::min(1.1, unlimited));
  machine.write("cgroup/outer/cpu.max", "50000 100000\n");
  EXPECT_EQ(machine.cpus(), 1);
}

TEST(System, CpuModel) {
  EXPECT_EQ(cpu_model(FakeMachine().proc()), "Test CPU @ 1 GHz");
}

TEST(System, MissingFilesAreZero) {
  const test::TemporaryDirectory dir;
  EXPECT_EQ(memory_info(dir / "proc", dir / "cgroup").total_bytes, 0U);
  EXPECT_EQ(cpu_model(dir / "proc"), "");
}

TEST(System, ThisProcess) {
  constexpr size_t kBytes = 64 << 20;
  const ProcessMemory before = process_memory();
  EXPECT_GT(before.resident_bytes, 100'000U);
  {
    std::vector<char> block(kBytes);
    std::memset(block.data(), 1, block.size());
    EXPECT_GT(process_memory().resident_bytes, before.resident_bytes + kBytes / 2);
  }
  EXPECT_GT(process_memory().peak_resident_bytes, before.resident_bytes + kBytes / 2);
#ifndef __SANITIZE_ADDRESS__  // which keeps freed memory for a while
  EXPECT_LT(process_memory().resident_bytes, before.resident_bytes + kBytes / 2);
#endif
  EXPECT_FALSE(host_name().empty());
  EXPECT_GE(logical_cpus(), 1);
}

TEST(System, ProcessorTimeOfThisProcess) {
  CpuMeter meter;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double idle = meter.utilization_percent();
  const std::clock_t end = std::clock() + CLOCKS_PER_SEC / 10;
  while (std::clock() < end) {  // of this process, whatever else runs
  }
  EXPECT_GE(idle, 0);
  EXPECT_GT(meter.utilization_percent(), idle);
}

}  // namespace
}  // namespace sftrun::observe
