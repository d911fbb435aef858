#include "sftrun/launch/scheduler_env.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"

namespace sftrun::launch {
namespace {

const Environment kSlurmTask = {{"SLURM_JOB_ID", "4711"},
                                {"SLURM_STEP_ID", "0"},
                                {"SLURM_PROCID", "3"},
                                {"SLURM_NTASKS", "4"},
                                {"SLURM_LOCALID", "1"},
                                {"SLURM_NODEID", "1"},
                                {"SLURM_TASKS_PER_NODE", "2(x2)"},
                                {"SLURM_JOB_NODELIST", "gpu[07-08,12]"}};

Environment without(Environment env, const std::string& name) {
  env.erase(name);
  return env;
}

TEST(ExternalWorker, NoneWithoutAnotherLauncher) {
  EXPECT_FALSE(external_worker({{"HOME", "/"}}, false));
}

TEST(ExternalWorker, TorchrunAlwaysMakesAWorker) {
  const auto worker = external_worker(
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}, true);
  ASSERT_TRUE(worker);
  EXPECT_EQ(worker->scheduler, "torchrun");
  EXPECT_EQ(worker->variables, (Environment{{"GROUP_RANK", "1"}}));  // all that was missing
}

TEST(ExternalWorker, ATaskOfSlurm) {
  const auto worker = external_worker(kSlurmTask, false);
  ASSERT_TRUE(worker);
  EXPECT_EQ(worker->scheduler, "Slurm");
  auto variables = worker->variables;
  EXPECT_EQ(variables["RANK"], "3");
  EXPECT_EQ(variables["WORLD_SIZE"], "4");
  EXPECT_EQ(variables["LOCAL_RANK"], "1");
  EXPECT_EQ(variables["LOCAL_WORLD_SIZE"], "2");
  EXPECT_EQ(variables["GROUP_RANK"], "1");
  EXPECT_EQ(variables["MASTER_ADDR"], "gpu07");
  const int port = std::stoi(variables["MASTER_PORT"]);
  EXPECT_GE(port, 15000);
  EXPECT_LT(port, 30000);
}

TEST(ExternalWorker, EveryTaskOfAJobFindsOnePortAndOtherJobsAnother) {
  Environment other_task = kSlurmTask, other_job = kSlurmTask;
  other_task["SLURM_PROCID"] = "0";
  other_job["SLURM_JOB_ID"] = "4712";
  const auto port = [](const Environment& env) {
    return external_worker(env, false)->variables.at("MASTER_PORT");
  };
  EXPECT_EQ(port(kSlurmTask), port(other_task));
  EXPECT_NE(port(kSlurmTask), port(other_job));
}

TEST(ExternalWorker, KeepsVariablesOfTheUser) {
  Environment env = kSlurmTask;
  env["MASTER_ADDR"] = "10.0.0.1";
  env["MASTER_PORT"] = "1234";
  const auto variables = external_worker(env, false)->variables;
  EXPECT_FALSE(variables.contains("MASTER_ADDR"));
  EXPECT_FALSE(variables.contains("MASTER_PORT"));
}

TEST(ExternalWorker, SlurmOnlyPlacesTheLauncher) {
  EXPECT_FALSE(external_worker(without(kSlurmTask, "SLURM_STEP_ID"), false));  // the batch script
  Environment one_task = kSlurmTask;
  one_task["SLURM_NTASKS"] = "1";
  EXPECT_FALSE(external_worker(one_task, false));   // srun --ntasks=1 --gpus=8
  EXPECT_FALSE(external_worker(kSlurmTask, true));  // --nproc-per-node 8
}

TEST(ExternalWorker, SlurmWithoutANodeListIsAnError) {
  EXPECT_THROW(external_worker(without(kSlurmTask, "SLURM_JOB_NODELIST"), false), ConfigError);
}

TEST(ExternalWorker, MpiOnOneMachine) {
  const auto worker = external_worker({{"OMPI_COMM_WORLD_RANK", "1"},
                                       {"OMPI_COMM_WORLD_SIZE", "2"},
                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                                      false);
  ASSERT_TRUE(worker);
  EXPECT_EQ(worker->scheduler, "MPI");
  EXPECT_EQ(worker->variables.at("RANK"), "1");
  EXPECT_EQ(worker->variables.at("LOCAL_WORLD_SIZE"), "2");
  EXPECT_EQ(worker->variables.at("MASTER_ADDR"), "127.0.0.1");
}

TEST(ExternalWorker, MpiOnSeveralMachinesNeedsTheMaster) {
  Environment env = {
      {"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}};
  EXPECT_THROW(external_worker(env, false), ConfigError);
  env["MASTER_ADDR"] = "node-a";
  EXPECT_EQ(external_worker(env, false)->variables.at("GROUP_RANK"), "1");
}

// What `accelerate launch` 1.15 sets: docs/launching.md.
const Environment kAccelerateOnCpu = {{"ACCELERATE_USE_CPU", "True"},
                                      {"ACCELERATE_MIXED_PRECISION", "no"},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", "29500"}};

TEST(ExternalWorker, AccelerateThatStartsOneOfSeveralIsAnError) {
  EXPECT_THROW(external_worker(kAccelerateOnCpu, false), ConfigError);
  EXPECT_FALSE(external_worker(kAccelerateOnCpu, true));  // --nproc-per-node 2
  EXPECT_FALSE(external_worker(without(kAccelerateOnCpu, "MASTER_ADDR"), false));  // of one
  Environment on_gpus = kAccelerateOnCpu;
  on_gpus["ACCELERATE_USE_CPU"] = "False";
  EXPECT_FALSE(external_worker(on_gpus, false));
}

TEST(ExternalWorker, AccelerateThroughTorchrunAndMpiMakesWorkers) {
  Environment torchrun = kAccelerateOnCpu, mpi = kAccelerateOnCpu;
  torchrun.insert({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}});
  EXPECT_EQ(external_worker(torchrun, false)->scheduler, "torchrun");
  mpi.insert({{"OMPI_COMM_WORLD_RANK", "1"},
              {"OMPI_COMM_WORLD_SIZE", "2"},
              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(external_worker(mpi, false)->scheduler, "MPI");
}

TEST(SlurmLists, FirstHost) {
  EXPECT_EQ(first_host("node[003-010,12],gpu5"), "node003");
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b,c"), "a");
  EXPECT_EQ(first_host("rack[1-2]node[03-04]"), "rack1node03");
  EXPECT_EQ(first_host("n[1,3].cluster,m2"), "n1.cluster");
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("broken[1-2"), "");
}

TEST(SlurmLists, TasksOfNode) {
  EXPECT_EQ(tasks_of_node("2(x3),1", 0), 2);
  EXPECT_EQ(tasks_of_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_of_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_of_node("2(x3),1", 4), std::nullopt);
  EXPECT_EQ(tasks_of_node("8", 0), 8);
  EXPECT_EQ(tasks_of_node("", 0), std::nullopt);
}

}  // namespace
}  // namespace sftrun::launch
