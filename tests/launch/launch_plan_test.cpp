#include "sftrun/launch/launch_plan.h"

#include <sys/stat.h>

#include "oom.h"
#include "sftrun/launch/run_lock.h"
#include "sftrun/observe/system.h"
#include "supervised_run.h"
#include "visible_gpus.h"

namespace sftrun::launch::testing {
namespace {

/// @param num_gpus of compute capability 9.0, one a NUMA node in turn
Machine machine(int num_gpus, int num_cpus = 16) {
  Machine machine{.available_cpus = static_cast<double>(num_cpus)};
  for (int i = 0; i < num_gpus; ++i) {
    machine.gpus.gpus.push_back({.index = i,
                                 .name = "H200",
                                 .uuid = "GPU-" + std::to_string(i) + "abc",
                                 .numa_node = i % 2,
                                 .compute_major = 9});
  }
  for (int i = 0; i < num_cpus; ++i)
    machine.cpus.push_back({.id = i, .node = i * 2 / num_cpus, .core = i});
  return machine;
}

std::string message_of(const LaunchRequest& request, const Machine& machine) {
  try {
    make_plan(request, machine);
    return "";
  } catch (const ConfigError& error) {
    return error.message();
  }
}

TEST(LaunchPlan, OneWorkerWithoutAGpu) {
  const LaunchPlan plan = make_plan({}, machine(0));
  EXPECT_EQ(plan.local_world_size, 1);
  EXPECT_EQ(plan.device, "cpu");
  EXPECT_EQ(plan.threads_per_worker, 16);
  EXPECT_TRUE(plan.cpus.empty());
}

TEST(LaunchPlan, OneWorkerAGpu) {
  const LaunchPlan plan = make_plan({}, machine(4));
  EXPECT_EQ(plan.local_world_size, 4);
  EXPECT_EQ(plan.device, "cuda");
  EXPECT_EQ(plan.cuda_visible_devices, "0,1,2,3");
  EXPECT_EQ(plan.threads_per_worker, 4);
  // GPUs 0 and 2 hang on node 0 with CPUs 0 to 7, the others on node 1.
  EXPECT_EQ(plan.cpus, (std::vector<std::vector<int>>{
                           {0, 1, 2, 3}, {8, 9, 10, 11}, {4, 5, 6, 7}, {12, 13, 14, 15}}));
}

TEST(LaunchPlan, OneProcessSeesAllGpus) {
  const LaunchPlan plan = make_plan({.is_one_process = true}, machine(4));
  EXPECT_EQ(plan.local_world_size, 1);
  EXPECT_EQ(plan.cuda_visible_devices, "0,1,2,3");
  EXPECT_EQ(make_plan({.gpus = "2", .is_one_process = true}, machine(4)).cuda_visible_devices,
            "0,1");
  EXPECT_EQ(make_plan({.nproc_per_node = "2", .is_one_process = true}, machine(4)).local_world_size,
            2)
      << "the command line decides; a device map then refuses two processes";
}

TEST(LaunchPlan, ForceSingleGpu) {
  for (const char* name : {"FORCE_SINGLE_GPU", "UNSLOTH_FORCE_SINGLE_GPU"}) {
    Machine four = machine(4);
    four.env[name] = "1";
    const LaunchPlan plan = make_plan({}, four);
    EXPECT_EQ(plan.local_world_size, 1);
    EXPECT_EQ(plan.cuda_visible_devices, "0");
    EXPECT_NE(describe(plan).find(std::string("note: ") + name + "=1: one process on one GPU"),
              std::string::npos)
        << describe(plan);
    const LaunchPlan asked = make_plan({.nproc_per_node = "2"}, four);
    EXPECT_EQ(asked.local_world_size, 2) << "the command line comes before the environment";
    EXPECT_NE(describe(asked).find("has no effect"), std::string::npos) << describe(asked);
    four.env[name] = "0";
    EXPECT_EQ(make_plan({}, four).local_world_size, 4);
  }
}

TEST(LaunchPlan, AmdMachinesGetAPlainWord) {
  const TemporaryDirectory root;
  EXPECT_EQ(amd_complaint(root.path()), "");
  std::filesystem::create_directories(root.path() / "dev");
  std::ofstream(root.path() / "dev/kfd") << "";
  Machine amd = machine(0);
  amd.amd = amd.gpus.problem = amd_complaint(root.path());
  EXPECT_NE(amd.amd.find("this machine has AMD GPUs"), std::string::npos) << amd.amd;
  EXPECT_NE(describe(make_plan({}, amd)).find("AMD GPUs"), std::string::npos);
  EXPECT_NE(message_of({.device = "cuda"}, amd).find("AMD GPUs"), std::string::npos);
  EXPECT_EQ(describe(make_plan({.device = "cpu"}, amd)).find("AMD"), std::string::npos);
}

TEST(LaunchPlan, ChosenGpusCountWithinTheVisibleOnes) {
  Machine four = machine(4);
  four.env["CUDA_VISIBLE_DEVICES"] = "3,2,1";
  EXPECT_EQ(make_plan({}, four).local_world_size, 3);
  EXPECT_EQ(make_plan({.gpus = "2"}, four).cuda_visible_devices, "3,2");
  EXPECT_EQ(make_plan({.gpus = "2,0"}, four).cuda_visible_devices, "1,3");
  EXPECT_EQ(make_plan({.gpus = "1,"}, four).cuda_visible_devices, "2");
  EXPECT_EQ(message_of({.gpus = "4"}, four), "--gpus 4 requests 4 GPUs (3 visible: 0 to 2)");
  EXPECT_EQ(message_of({.gpus = "0,3"}, four), "--gpus names GPU `3` (3 visible: 0 to 2)");
  EXPECT_EQ(message_of({.gpus = "1,1"}, four), "--gpus names GPU 1 twice");
}

TEST(LaunchPlan, CudaVisibleDevicesByCudasRules) {
  const GpuReport report = machine(4).gpus;
  const auto ids = [&](const std::string& setting) {
    std::string text;
    for (const VisibleGpu& gpu : visible_gpus(report, {{"CUDA_VISIBLE_DEVICES", setting}}))
      text += gpu.id + " ";
    return text;
  };
  EXPECT_EQ(ids("2,0"), "2 0 ");
  EXPECT_EQ(ids("GPU-3a,1"), "GPU-3a 1 ");
  EXPECT_EQ(ids("0,9,1"), "0 ");  // the list ends at a GPU that is not there
  EXPECT_EQ(ids(""), "");
  EXPECT_EQ(ids("-1"), "");
  EXPECT_EQ(ids("MIG-aaaa,MIG-bbbb"), "MIG-aaaa ");
  EXPECT_EQ(ids("0,9,0"), "0 ");
}

TEST(LaunchPlan, AGpuNamedTwiceIsAnError) {
  Machine four = machine(4);
  for (const std::string setting : {"0,0", "1,0,1", "GPU-3a,3"}) {
    four.env["CUDA_VISIBLE_DEVICES"] = setting;
    EXPECT_TRUE(message_of({}, four).starts_with("CUDA_VISIBLE_DEVICES names one GPU twice"))
        << setting;
    EXPECT_EQ(make_plan({.device = "cpu"}, four).device, "cpu");
  }
}

TEST(LaunchPlan, FallsBackToTheCpuIfNoGpuWasRequested) {
  EXPECT_EQ(make_plan({}, machine(2)).workers_device, "auto");
  EXPECT_EQ(make_plan({.device = "cuda"}, machine(2)).workers_device, "cuda");
  EXPECT_EQ(make_plan({.gpus = "1"}, machine(2)).workers_device, "cuda");
  EXPECT_EQ(make_plan({.device = "cpu"}, machine(2)).workers_device, "cpu");
  EXPECT_EQ(make_plan({}, machine(0)).workers_device, "cpu");
}

TEST(LaunchPlan, UsesTheRequestedNumberOfWorkers) {
  EXPECT_EQ(make_plan({.nproc_per_node = "3"}, machine(0)).local_world_size, 3);
  EXPECT_EQ(make_plan({.nproc_per_node = "1"}, machine(4)).local_world_size, 1);
  EXPECT_EQ(make_plan({.nproc_per_node = "cpu"}, machine(4)).local_world_size, 16);
  EXPECT_EQ(make_plan({.nproc_per_node = "8", .device = "cpu"}, machine(4)).local_world_size, 8);
  EXPECT_EQ(message_of({.nproc_per_node = "two"}, machine(0)),
            "--nproc-per-node two is neither auto nor a number of workers");
  EXPECT_EQ(message_of({.nproc_per_node = "0"}, machine(0)),
            "--nproc-per-node 0 is neither auto nor a number of workers");
  EXPECT_EQ(message_of({.nproc_per_node = "2"}, machine(1)), "2 workers, but only 1 GPU");
  EXPECT_EQ(make_plan({.nproc_per_node = "2", .may_share_gpus = true}, machine(1)).local_world_size,
            2);
}

TEST(LaunchPlan, ARequestedGpuMustExist) {
  Machine none = machine(0);
  none.gpus.problem = "no NVIDIA driver found";
  EXPECT_EQ(message_of({.device = "cuda"}, none),
            "a GPU was requested, but no NVIDIA driver found");
  Machine hidden = machine(2);
  hidden.env["CUDA_VISIBLE_DEVICES"] = "";
  EXPECT_EQ(message_of({.gpus = "1"}, hidden),
            "a GPU was requested, but CUDA_VISIBLE_DEVICES hides every GPU");
  EXPECT_EQ(make_plan({}, hidden).device, "cpu");
  EXPECT_NE(message_of({.gpus = "1", .device = "cpu"}, machine(1)), "");
}

TEST(LaunchPlan, ABuildWithoutCudaTrainsOnTheCpuAndSaysSo) {
  Machine two = machine(2);
  two.can_use_gpus = false;
  const LaunchPlan plan = make_plan({}, two);
  EXPECT_EQ(plan.device, "cpu");
  EXPECT_EQ(plan.local_world_size, 1);
  EXPECT_NE(describe(plan).find("note: 2 GPUs found, but sftrun was built without CUDA"),
            std::string::npos);
  EXPECT_NE(message_of({.device = "cuda"}, two), "");
  Machine one = machine(1);
  one.can_use_gpus = false;
  EXPECT_NE(describe(make_plan({}, one)).find("note: 1 GPU found, but"), std::string::npos);
}

TEST(LaunchPlan, OldGpusAreRefusedByName) {
  Machine mixed = machine(2);
  mixed.gpus.gpus[1].name = "Tesla V100";
  mixed.gpus.gpus[1].compute_major = 7;
  EXPECT_EQ(message_of({}, mixed),
            "GPU 1 (Tesla V100, sm_70) is too old: sm_80 (Ampere) or newer is required");
  EXPECT_EQ(make_plan({.gpus = "0,"}, mixed).cuda_visible_devices, "0");
  EXPECT_EQ(make_plan({.device = "cpu"}, mixed).device, "cpu");
}

TEST(LaunchPlan, AnOldDriverIsNoted) {
  Machine one = machine(1);
  one.gpus.driver_version = "535.104.05";
  EXPECT_NE(describe(make_plan({}, one))
                .find("NVIDIA driver 535.104.05 is too old for CUDA 13, which needs 580 or newer"),
            std::string::npos);
}

TEST(LaunchPlan, SeveralNodes) {
  const LaunchPlan plan =
      make_plan({.nnodes = 3, .node_rank = 2, .master_addr = "node-a"}, machine(4));
  EXPECT_EQ(plan.world_size(), 12);
  EXPECT_EQ(plan.rank_of(1), 9);
  EXPECT_EQ(plan.master_port, 29500);
  EXPECT_EQ(message_of({.nnodes = 2}, machine(1)), "--nnodes requires --master-addr");
  const LaunchPlan tunnel = make_plan({.nnodes = 2, .master_addr = "127.0.0.1"}, machine(1));
  EXPECT_EQ(tunnel.master_addr, "127.0.0.1");
  EXPECT_NE(message_of({.nnodes = 2, .node_rank = 2, .master_addr = "a"}, machine(1)), "");
}

TEST(LaunchPlan, TheCpuQuotaIsShared) {
  Machine limited = machine(0);
  limited.available_cpus = 3.5;
  EXPECT_EQ(make_plan({}, limited).threads_per_worker, 3);
  EXPECT_EQ(make_plan({.nproc_per_node = "2"}, limited).threads_per_worker, 1);
  EXPECT_EQ(make_plan({.nproc_per_node = "8"}, limited).threads_per_worker, 1);
  limited.env["OMP_NUM_THREADS"] = "2";  // the user's, which workers read
  EXPECT_EQ(make_plan({.nproc_per_node = "8"}, limited).threads_per_worker, 2);
  EXPECT_NE(describe(make_plan({}, limited)).find("the CPU quota of 3.5 (of 16 CPUs)"),
            std::string::npos);
}

TEST(LaunchPlan, TheQuotaIsReadFromTheControlGroup) {
  const TemporaryDirectory root;
  std::filesystem::create_directories(root.path() / "proc/self");
  std::filesystem::create_directories(root.path() / "cgroup/job/step");
  std::ofstream(root.path() / "proc/self/cgroup") << "0::/job/step\n";
  std::ofstream(root.path() / "cgroup/job/step/cpu.max") << "max 100000\n";
  std::ofstream(root.path() / "cgroup/job/cpu.max") << "50000 100000\n";
  Machine limited = machine(0);
  limited.available_cpus = observe::available_cpus(root.path() / "proc", root.path() / "cgroup");
  EXPECT_EQ(limited.available_cpus, 1);  // half a CPU, but a worker needs one thread
  EXPECT_EQ(make_plan({}, limited).threads_per_worker, 1);
}

TEST(LaunchPlan, WorkersEnvironment) {
  const LaunchPlan plan = make_plan({}, machine(2));
  const Environment env = worker_environment(plan, {{"HOME", "/h"}}, 1, 4242);
  EXPECT_EQ(env.at("HOME"), "/h");
  EXPECT_EQ(env.at("LOCAL_RANK"), "1");
  EXPECT_EQ(env.at("MASTER_PORT"), "4242");
  EXPECT_EQ(env.at("CUDA_VISIBLE_DEVICES"), "0,1");
  EXPECT_EQ(env.at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
  EXPECT_FALSE(
      worker_environment(make_plan({}, machine(0)), {}, 0, 4242).contains("CUDA_VISIBLE_DEVICES"));
}

TEST(LaunchPlan, CpuBindingCanBeSwitchedOff) {
  Machine two = machine(2);
  EXPECT_EQ(make_plan({}, two).cpus.size(), 2u);
  two.env["SFTRUN_CPU_BIND"] = "none";
  EXPECT_TRUE(make_plan({}, two).cpus.empty());
}

TEST(Ports, APickedPortIsFreeAndATakenOneIsNot) {
  const int port = pick_free_port();
  EXPECT_GT(port, 1023);
  EXPECT_TRUE(is_port_free(port));
  EXPECT_FALSE(is_port_free(70000));
}

TEST(RunLock, OneRunAtATime) {
  const TemporaryDirectory directory;
  const auto run_dir = directory.path() / "runs/a";
  {
    const RunLock lock(run_dir);
    const RunLock other_node(run_dir, 1);
    try {
      const RunLock second(run_dir);
      FAIL() << "locked twice";
    } catch (const ConfigError& error) {
      EXPECT_NE(error.message().find("another run is using this run directory: pid " +
                                     std::to_string(::getpid())),
                std::string::npos)
          << error.message();
    }
  }
  const RunLock again(run_dir);
}

TEST(RunLock, APipeOfItsNameIsRefused) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory.path() / ".lock").c_str(), 0600), 0);
  try {
    const RunLock lock(directory.path());
    FAIL() << "locked a pipe";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.message(),
              "cannot write to the run directory: is a named pipe, not a regular file");
    EXPECT_EQ(error.where(), directory.path() / ".lock");
    EXPECT_EQ(error.fix(), "remove or rename it, or choose another path");
  }
}

TEST(OomKills, ReadsTheKernelsCounters) {
  const TemporaryDirectory root;
  const auto proc = root.path() / "proc", cgroup = root.path() / "cgroup";
  std::filesystem::create_directories(proc / "self");
  std::filesystem::create_directories(cgroup / "memory/pod");
  EXPECT_EQ(num_oom_kills(proc, cgroup), 0u);
  std::ofstream(proc / "vmstat") << "nr_free_pages 12\noom_kill 3\n";
  EXPECT_EQ(num_oom_kills(proc, cgroup), 3u);
  std::ofstream(proc / "self/cgroup") << "4:memory:/pod\n0::/pod\n";
  std::ofstream(cgroup / "memory/pod/memory.oom_control")
      << "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n";
  EXPECT_EQ(num_oom_kills(proc, cgroup), 2u);
  std::filesystem::create_directories(cgroup / "pod");
  std::ofstream(cgroup / "pod/memory.events") << "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n";
  EXPECT_EQ(num_oom_kills(proc, cgroup), 1u);
}

}  // namespace
}  // namespace sftrun::launch::testing
