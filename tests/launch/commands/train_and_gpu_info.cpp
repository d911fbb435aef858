// `sftrun train` and `sftrun gpu-info` as users call them, with stand-ins for the engine and for
// NVML.
#include <nlohmann/json.hpp>

#include "supervised_run.h"

namespace sftrun::launch::testing {
namespace {

using Json = nlohmann::json;

class Commands : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(path("data.jsonl")) << R"({"text": "hello"})"
                                      << "\n";
    std::ofstream(path("machine.yaml"))
        << "{}\n";  // of this machine nothing, whoever runs the tests
    std::ofstream(path("run.yaml"))
        << "model: { name: " SFTRUN_TEST_DATA "/models/tied-gqa }\ndata: { train: data.jsonl }\n";
  }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

  /// @param variables as a shell takes them before a command   @return the exit code
  int run(const std::string& variables, const std::string& arguments) const {
    const std::string clean =
        "env -u RANK -u WORLD_SIZE -u CUDA_VISIBLE_DEVICES SFTRUN_MACHINE_CONFIG=machine.yaml "
        "SFTRUN_NVML_LIBRARY=none.so "
        "SFTRUN_ENGINE=" SFTRUN_FAKE_ENGINE " FAKE_ENGINE_DIR=. ";
    const std::string line = "cd " + directory_.path().string() + " && " + clean + variables +
                             " " SFTRUN_PROGRAM " " + arguments + " > out 2> err";
    const int status = std::system(line.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string out() const { return read_file(path("out")); }
  std::string err() const { return read_file(path("err")); }
  Json request(int rank) const {
    return Json::parse(read_file(path("request-" + std::to_string(rank) + ".json")));
  }
  bool environment_has(int rank, const std::string& line) const {
    return ("\n" + read_file(path("environment-" + std::to_string(rank) + ".txt")))
               .find("\n" + line + "\n") != std::string::npos;
  }

  TemporaryDirectory directory_;
};

TEST_F(Commands, TrainStartsWorkersWithTheResolvedConfiguration) {
  ASSERT_EQ(run("",
                "train --config run.yaml --nproc-per-node 2 --resume never --allow-changed-data "
                "train.epochs=1"),
            0)
      << err();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(environment_has(rank, "RANK=" + std::to_string(rank)));
    EXPECT_TRUE(environment_has(rank, "WORLD_SIZE=2"));
    const Json asked = request(rank);
    EXPECT_EQ(asked["config"]["train"]["epochs"], 1);
    EXPECT_EQ(asked["config"]["train"]["learning_rate"], 2e-4);
    EXPECT_EQ(asked["config"]["output"]["dir"], "runs/run");
    EXPECT_EQ(asked["resume"], "never");
    EXPECT_EQ(asked["allow_changed_data"], true);
    EXPECT_EQ(asked["allow_backend_change"], false);
    EXPECT_EQ(asked["device"], "cpu");
    EXPECT_EQ(read_file(path("runs/run/logs/rank-" + std::to_string(rank) + ".log")),
              "worker " + std::to_string(rank) + " of 2\n");
  }
  EXPECT_EQ(out(), "[rank 0] worker 0 of 2\n");
  EXPECT_NE(err().find("override: train.epochs = 1 (from command line)"), std::string::npos)
      << err();
  EXPECT_NE(err().find("train.learning_rate = 0.0002"), std::string::npos) << err();
  EXPECT_EQ(count_of(err(), "override:"), 1) << err();  // once, not once a worker
}

TEST_F(Commands, DryRunPrintsTheRunAndStartsNothing) {
  ASSERT_EQ(run("", "train --config run.yaml --nproc-per-node 4 --dry-run train.epochs=1"), 0)
      << err();
  EXPECT_NE(out().find("# launch: 4 workers on the CPU"), std::string::npos) << out();
  EXPECT_NE(out().find("# override: train.epochs = 1"), std::string::npos) << out();
  EXPECT_FALSE(std::filesystem::exists(path("runs")));
  // What is printed is a configuration itself.
  std::filesystem::copy_file(path("out"), path("again.yaml"));
  EXPECT_EQ(run("", "train --config again.yaml --nproc-per-node 4 --dry-run"), 0) << err();
}

TEST_F(Commands, InsideTorchrunTrainIsTheWorker) {
  ASSERT_EQ(run("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
                "MASTER_PORT=29511",
                "train --config run.yaml"),
            0)
      << err();
  EXPECT_EQ(out(), "worker 1 of 2\n");
  EXPECT_FALSE(std::filesystem::exists(path("request-0.json")));
  EXPECT_EQ(request(1)["device"], "auto");
}

TEST_F(Commands, InsideSlurmTrainIsTheWorker) {
  ASSERT_EQ(run("SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=0 "
                "SLURM_NODEID=1 "
                "SLURM_TASKS_PER_NODE='2(x2)' SLURM_JOB_NODELIST='n[3-4]'",
                "train --config run.yaml"),
            0)
      << err();
  EXPECT_EQ(out(), "worker 2 of 4\n");
  EXPECT_TRUE(environment_has(2, "MASTER_ADDR=n3"));
  EXPECT_TRUE(environment_has(2, "LOCAL_WORLD_SIZE=2"));
}

TEST_F(Commands, AWorkersErrorIsPrintedOnceWithItsCode) {
  EXPECT_EQ(run("FAKE_ENGINE_EXIT=3", "train --config run.yaml --nproc-per-node 2"), 3);
  EXPECT_EQ(count_of(err(), "error: as told"), 1) << err();
  EXPECT_EQ(run("FAKE_ENGINE_EXIT=5", "train --config run.yaml --nproc-per-node 2"), 5);
  EXPECT_NE(err().find("first failure on rank "), std::string::npos) << err();
}

TEST_F(Commands, ARunThatFailsSaysWhyInItsReport) {
  const std::string report = "FAKE_ENGINE_REPORT=runs/run/run.json ";
  EXPECT_EQ(run(report + "FAKE_ENGINE_EXIT=5", "train --config run.yaml --nproc-per-node 1"), 5);
  const Json failed = Json::parse(read_file(path("runs/run/run.json")));
  EXPECT_EQ(failed["status"], "failed");
  EXPECT_NE(failed["error"].get<std::string>().find("first failure on rank 0"), std::string::npos)
      << failed;
  EXPECT_NE(failed["error"].get<std::string>().find("as told"), std::string::npos) << failed;
  EXPECT_TRUE(failed["finished_at"].is_number());
}

TEST_F(Commands, ARunThatIsKilledIsNotRunning) {
  const std::string both =
      "FAKE_ENGINE_REPORT=runs/run/run.json FAKE_ENGINE_HANGS=1 SFTRUN_ENGINE=" SFTRUN_FAKE_ENGINE
      " FAKE_ENGINE_DIR=. SFTRUN_MACHINE_CONFIG=machine.yaml SFTRUN_NVML_LIBRARY=none.so ";
  const std::string line =
      "cd " + directory_.path().string() + " && { env -u RANK -u WORLD_SIZE " + both +
      SFTRUN_PROGRAM
      " train --config run.yaml --nproc-per-node 1 callbacks.command=true > out 2> err & P=$!; "
      "for i in $(seq 500); do [ -e hangs-0 ] && break; sleep 0.02; done; "
      "kill -INT $P; sleep 0.8; kill -INT $P; wait $P; }";
  const int status = std::system(line.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 130) << err();
  const Json report = Json::parse(read_file(path("runs/run/run.json")));
  EXPECT_EQ(report["status"], "interrupted");
  EXPECT_NE(report["error"].get<std::string>().find("killed"), std::string::npos) << report;
  EXPECT_NE(err().find("was not started for the event `end`"), std::string::npos) << err();
}

TEST_F(Commands, OneRunDirectoryOneRun) {
  std::filesystem::create_directories(path("runs/run"));
  ASSERT_EQ(std::system(("flock " + path("runs/run/.lock") + " sleep 5 &").c_str()), 0);
  ASSERT_TRUE(eventually(
      [&] { return std::system(("flock -n " + path("runs/run/.lock") + " true").c_str()) != 0; }));
  EXPECT_EQ(run("", "train --config run.yaml"), 2);
  EXPECT_NE(err().find("another run is using this run directory"), std::string::npos) << err();
}

TEST_F(Commands, GpuInfoWithoutAGpuDescribesTheMachine) {
  ASSERT_EQ(run("", "gpu-info"), 0) << err();
  EXPECT_TRUE(out().starts_with("Number of GPUs: 0\nNo GPU was found: no NVIDIA driver found"))
      << out();
  EXPECT_NE(out().find("\nCPU: "), std::string::npos) << out();
  EXPECT_NE(out().find("\nMemory: "), std::string::npos) << out();
  ASSERT_EQ(run("", "gpu-info --json"), 0) << err();
  const Json answer = Json::parse(out());
  EXPECT_EQ(answer["num_gpus"], 0);
  EXPECT_GE(answer["cpu"]["available_cpus"], 1);
  EXPECT_GT(answer["memory"]["total_bytes"], 0);
}

TEST_F(Commands, GpuInfoDescribesGpus) {
  const std::string fake = "SFTRUN_NVML_LIBRARY=" SFTRUN_FAKE_NVML
                           " FAKE_NVML_GPUS='NVIDIA H200,Tesla V100' FAKE_NVML_DRIVER=535.1 ";
  ASSERT_EQ(run(fake, "gpu-info"), 0) << err();
  EXPECT_TRUE(out().starts_with("Number of GPUs: 2\n")) << out();
  for (const char* part : {"GPU 0: NVIDIA H200 (sm_90)",
                           "GPU 1: Tesla V100 (sm_70)  NOT SUPPORTED: older than sm_80 (Ampere)",
                           "80.00 GiB total, 60.00 GiB free", "  utilization  37%",
                           "  temperature  45 °C", "  power        123 W of ?", "GPU0     X   NV2",
                           "Driver: 535.1", "CUDA of the driver: 13.0", "too old for CUDA 13"}) {
    EXPECT_NE(out().find(part), std::string::npos) << part << "\n" << out();
  }
  ASSERT_EQ(run(fake, "gpu-info --json"), 0) << err();
  const Json answer = Json::parse(out());
  EXPECT_EQ(answer["gpus"][1]["usable"], false);
  EXPECT_EQ(answer["gpus"][0]["power_limit_w"], nullptr);
  EXPECT_EQ(answer["links"][0][1], "NV2");
  EXPECT_EQ(answer["problems"].size(), 1u);
}

TEST_F(Commands, MemoryCheckShowsWhoUsesAGpu) {
  const std::string fake = "SFTRUN_NVML_LIBRARY=" SFTRUN_FAKE_NVML
                           " FAKE_NVML_GPUS='NVIDIA H200,NVIDIA H200' FAKE_NVML_PID=77 ";
  ASSERT_EQ(run(fake, "memory-check"), 0) << err();
  for (const char* part :
       {"GPU 0: NVIDIA H200: 20.00 GiB of 80.00 GiB in use, 60.00 GiB free\n",
        "  another program (pid 77): 18.00 GiB\n", "  another program (pid 4242): not reported\n",
        "GPU 1: NVIDIA H200", "Memory of the host: "}) {
    EXPECT_NE(out().find(part), std::string::npos) << part << "\n" << out();
  }
  ASSERT_EQ(run(fake, "memory-check --json"), 0) << err();
  const Json live = Json::parse(out());
  EXPECT_EQ(live["gpus"][0]["processes"][0]["used_bytes"], 18LL << 30);
  EXPECT_EQ(live["gpus"][0]["processes"][1]["used_bytes"], nullptr);
  EXPECT_EQ(live["gpus"][1]["processes"].size(), 0u);
  EXPECT_TRUE(live["hidden_gpus"].empty());
}

/// As gpu-info does.
TEST_F(Commands, MemoryCheckShowsTheGpusThatCudaShows) {
  const std::string fake = "SFTRUN_NVML_LIBRARY=" SFTRUN_FAKE_NVML
                           " FAKE_NVML_GPUS='NVIDIA H200,NVIDIA H200' CUDA_VISIBLE_DEVICES=1 ";
  ASSERT_EQ(run(fake, "memory-check"), 0) << err();
  EXPECT_TRUE(
      out().starts_with("Hidden by CUDA_VISIBLE_DEVICES=1: GPU 0 (NVIDIA H200)\n"
                        "GPU 1: NVIDIA H200: 20.00 GiB of 80.00 GiB in use"))
      << out();
  ASSERT_EQ(run(fake, "memory-check --json"), 0) << err();
  const Json live = Json::parse(out());
  EXPECT_EQ(live["gpus"].size(), 1u);
  EXPECT_EQ(live["gpus"][0]["index"], 1);
  EXPECT_EQ(live["hidden_gpus"][0]["index"], 0);
  ASSERT_EQ(run(fake + "CUDA_VISIBLE_DEVICES= ", "memory-check"), 0) << err();
  EXPECT_TRUE(out().starts_with("No GPU is visible.\nHidden by CUDA_VISIBLE_DEVICES=: GPU 0 "))
      << out();
}

/// On the GPUs here the run is planned for what CUDA leaves of them.
TEST_F(Commands, MemoryCheckPlansForTheGpusHere) {
  const std::string fake =
      "SFTRUN_NVML_LIBRARY=" SFTRUN_FAKE_NVML " FAKE_NVML_GPUS='NVIDIA H200,NVIDIA H200' ";
  const std::string plan = "memory-check --config run.yaml --json ";
  ASSERT_EQ(run(fake, plan), 0) << err();
  const Json both = Json::parse(out());
  if (both["device"]["kind"] == "cpu") GTEST_SKIP() << "this build has no CUDA code";
  EXPECT_EQ(both["device"]["world_size"], 2);
  EXPECT_EQ(both["device"]["memory_bytes"], (80LL << 30) - (512LL << 20));
  const std::string others =
      "SFTRUN_NVML_LIBRARY=" SFTRUN_FAKE_NVML " FAKE_NVML_GPUS='NVIDIA H200,NVIDIA A100' ";
  ASSERT_EQ(run(others, plan + "--gpus 1,"), 0) << err();
  EXPECT_EQ(Json::parse(out())["device"]["world_size"], 1);
  EXPECT_EQ(Json::parse(out())["device"]["name"], "1 x NVIDIA A100");
  ASSERT_EQ(run(fake, plan + "--nproc-per-node 1"), 0) << err();
  EXPECT_EQ(Json::parse(out())["device"]["world_size"], 1);
}

TEST_F(Commands, GpuInfoWatchesUntilStopped) {
  const std::string line = "cd " + directory_.path().string() +
                           " && SFTRUN_NVML_LIBRARY=none.so timeout -s INT 2.5 " SFTRUN_PROGRAM
                           " gpu-info --watch --json > out";
  ASSERT_NE(std::system(line.c_str()), -1);
  EXPECT_GE(count_of(out(), "\"num_gpus\":0"), 2) << out();
}

}  // namespace
}  // namespace sftrun::launch::testing
