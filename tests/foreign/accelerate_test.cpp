#include "foreign/import_test_base.h"
#include "sftrun/config/problem.h"
#include "support/expect_error.h"

namespace sftrun::foreign {
namespace {

class AccelerateTest : public ImportTest {
 protected:
  Import accelerate(const std::string& text) { return import(text, Tool::kAccelerate); }
  std::string strategy(const std::string& text) {
    return value_of(accelerate(text), "parallel.strategy");
  }
  void expect_refused(const std::string& text, std::initializer_list<std::string> parts) {
    test::expect_error<ConfigError>([&] { accelerate(text); }, parts);
  }
};

TEST_F(AccelerateTest, OneGpu) {
  const Import one = accelerate(
      "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: bf16\n"
      "use_cpu: false\n");
  EXPECT_EQ(value_of(one, "model.dtype"), "\"bf16\"");
  EXPECT_EQ(one.launch.processes, 1);
  EXPECT_EQ(one.settings.size(), 1U);
  EXPECT_EQ(one.missing, (std::vector<std::string>{"model.name", "data.train"}));
}

TEST_F(AccelerateTest, TwoGpus) {
  const Import two = accelerate(
      "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\n"
      "num_processes: 2\nuse_cpu: false\n");
  EXPECT_EQ(value_of(two, "parallel.strategy"), "\"ddp\"");
  EXPECT_EQ(two.launch.processes, 2);
  EXPECT_EQ(launch_flags(two.launch), "--nproc-per-node 2");
}

/// Every key of a file for FSDP as it is often written, also the older name of the prefetch policy.
TEST_F(AccelerateTest, TwoGpusWithFsdp) {
  const Import two = accelerate(
      "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n"
      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_backward_prefetch_policy: BACKWARD_PRE\n  fsdp_forward_prefetch: false\n"
      "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_offload_params: false\n"
      "  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
      "  fsdp_sync_module_states: true\n  fsdp_use_orig_params: true\nmixed_precision: bf16\n"
      "num_processes: 2\nuse_cpu: false\n");
  EXPECT_EQ(value_of(two, "parallel.strategy"), "\"fsdp\"");
  EXPECT_EQ(two.settings.size(), 2U);
  EXPECT_TRUE(two.not_carried.empty());
  for (const char* key :
       {"auto_wrap_policy", "backward_prefetch_policy", "forward_prefetch",
        "cpu_ram_efficient_loading", "state_dict_type", "sync_module_states", "use_orig_params"})
    EXPECT_TRUE(has_key(two.no_meaning, std::string("fsdp_config.fsdp_") + key)) << key;
}

TEST_F(AccelerateTest, WholeCheckpointsOfFsdp) {
  const Import whole =
      accelerate("distributed_type: FSDP\nfsdp_config: {fsdp_state_dict_type: FULL_STATE_DICT}\n");
  EXPECT_EQ(value_of(whole, "train.checkpoint_format"), "\"whole\"");
}

TEST_F(AccelerateTest, ShardingStrategiesByNameAndNumber) {
  const auto fsdp = [&](const std::string& key, const std::string& value) {
    return strategy("distributed_type: FSDP\nfsdp_config: {" + key + ": " + value + "}\n");
  };
  for (const auto& [name, number, expected] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"FULL_SHARD", "1", "\"fsdp\""},
           {"SHARD_GRAD_OP", "2", "\"zero2\""},
           {"NO_SHARD", "3", "\"ddp\""},
           {"HYBRID_SHARD", "4", "\"hybrid\""},
           {"HYBRID_SHARD_ZERO2", "5", "\"hybrid\""}}) {
    EXPECT_EQ(fsdp("fsdp_sharding_strategy", name), expected);
    EXPECT_EQ(fsdp("fsdp_sharding_strategy", number), expected);
    EXPECT_EQ(fsdp("fsdp_reshard_after_forward", name), expected);
  }
  EXPECT_EQ(fsdp("sharding_strategy", "SHARD_GRAD_OP"), "\"zero2\"");  // Accelerate adds fsdp_
  EXPECT_EQ(fsdp("fsdp_reshard_after_forward", "true"), "\"fsdp\"");
  EXPECT_EQ(fsdp("fsdp_reshard_after_forward", "false"), "\"zero2\"");
  EXPECT_EQ(strategy("distributed_type: FSDP\nfsdp_config: {}\n"), "\"fsdp\"");
  expect_refused("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: HALF}\n",
                 {"`fsdp_config.fsdp_sharding_strategy` is `HALF`", "file:2:39", "HYBRID_SHARD"});
  expect_refused(
      "distributed_type: FSDP\n"
      "fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_reshard_after_forward: true}\n",
      {"says parallel.strategy zero2", "says fsdp", "file:2:15", "file:2:54"});
}

TEST_F(AccelerateTest, DeepSpeedStages) {
  for (const auto& [stage, expected] : std::vector<std::pair<std::string, std::string>>{
           {"0", "\"ddp\""}, {"1", "\"zero1\""}, {"2", "\"zero2\""}, {"3", "\"zero3\""}})
    EXPECT_EQ(
        strategy("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: " + stage + "}\n"),
        expected);
  EXPECT_EQ(strategy("distributed_type: DEEPSPEED\n"), "\"zero2\"");  // Accelerate's default
  const Import both = accelerate(
      "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, gradient_clipping: 0.5, "
      "gradient_accumulation_steps: 4, zero3_init_flag: true, offload_optimizer_device: none}\n");
  EXPECT_EQ(value_of(both, "train.max_grad_norm"), "0.5");
  EXPECT_EQ(value_of(both, "train.grad_accum"), "4");
  expect_refused("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 4}\n",
                 {"`deepspeed_config.zero_stage` is 4", "0, 1, 2 or 3"});
}

TEST_F(AccelerateTest, NamesAFileOfDeepSpeed) {
  write("ds.json", R"({"zero_optimization": {"stage": 1}, "gradient_clipping": 2})");
  const std::string text =
      "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json";
  const Import both = accelerate(text + "}\n");
  EXPECT_EQ(value_of(both, "parallel.strategy"), "\"zero1\"");
  EXPECT_EQ(value_of(both, "train.max_grad_norm"), "2.0");
  expect_refused(text + ", zero_stage: 3}\n",
                 {"`zero_optimization.stage` says parallel.strategy zero1", "says zero3",
                  "ds.json:1:24", "file:2:52"});
  expect_refused(
      "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: no.json}\n",
      {"no such file: no.json", "file:2:43"});
}

TEST_F(AccelerateTest, SeveralMachines) {
  const Import nodes = accelerate(
      "distributed_type: MULTI_GPU\nnum_processes: 16\nnum_machines: 2\nmachine_rank: 1\n"
      "main_process_ip: node-a\nmain_process_port: 29501\nsame_network: true\n"
      "rdzv_backend: static\n");
  EXPECT_EQ(launch_flags(nodes.launch),
            "--nproc-per-node 8 --nnodes 2 --node-rank 1 --master-addr node-a --master-port 29501");
  expect_refused(
      "distributed_type: MULTI_GPU\nnum_processes: 3\nnum_machines: 2\n",
      {"`num_processes` 3 is not a multiple of `num_machines` 2", "file:2:1", "file:3:1"});
  expect_refused("distributed_type: MULTI_GPU\nnum_machines: 2\nmachine_rank: 2\n",
                 {"`machine_rank` 2 is not below `num_machines` 2"});
}

TEST_F(AccelerateTest, Devices) {
  EXPECT_EQ(launch_flags(
                accelerate("distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: 0,2\n").launch),
            "--gpus 0,2 --nproc-per-node 2");
  EXPECT_FALSE(
      accelerate("distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: all\n").launch.devices);
  EXPECT_EQ(accelerate("distributed_type: MULTI_CPU\nnum_processes: 2\n").launch.devices, "cpu");
  EXPECT_EQ(accelerate("distributed_type: 'NO'\nuse_cpu: true\n").launch.devices, "cpu");
  expect_refused("distributed_type: MULTI_GPU\nnum_processes: 4\ngpu_ids: 0,1\n",
                 {"`gpu_ids` names 2 GPUs, but a machine has 4 processes"});
  expect_refused("distributed_type: MULTI_GPU\nuse_cpu: true\n", {"`use_cpu` is true"});
  expect_refused("distributed_type: XLA\n", {"`distributed_type` is `XLA`", "file:1:19"});
  expect_refused("num_processes: 2\n", {"`distributed_type` is missing"});
}

TEST_F(AccelerateTest, Contradictions) {
  expect_refused("distributed_type: MULTI_GPU\ndeepspeed_config: {zero_stage: 3}\n",
                 {"`distributed_type` is MULTI_GPU, but `deepspeed_config.zero_stage` is given",
                  "file:1:1", "file:2:1"});
  expect_refused("distributed_type: DEEPSPEED\nfsdp_config: {fsdp_version: 2}\n",
                 {"`fsdp_config.fsdp_version` is given"});
  expect_refused("distributed_type: NO\nnum_processes: 2\n",
                 {"`distributed_type` is NO, but `num_processes` is 2"});
  expect_refused("distributed_type: MULTI_GPU\nmixed_precision: fp8\n",
                 {"`mixed_precision` is fp8", "tuning.quant: fp8"});
  expect_refused("distributed_type: MULTI_GPU\nnum_proceses: 2\n",
                 {"unknown key `num_proceses`", "did you mean `num_processes`?"});
}

TEST_F(AccelerateTest, AWrongValueIsReportedOnce) {
  try {
    accelerate("distributed_type: MULTI_GPU\nnum_machines: two\nnum_processes: 2\n");
    ADD_FAILURE() << "no error";
  } catch (const ConfigProblems& error) {
    ASSERT_EQ(error.problems.size(), 1U);
    EXPECT_NE(error.problems[0].message.find("`num_machines` is `two`"), std::string::npos);
  }
}

TEST_F(AccelerateTest, GroupsThatShareACopyAreHybrid) {
  const Import groups = accelerate(
      "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_version: 2}\n"
      "parallelism_config: {parallelism_config_dp_shard_size: 4, "
      "parallelism_config_dp_replicate_size: 2, parallelism_config_tp_size: 1}\n");
  EXPECT_EQ(value_of(groups, "parallel.strategy"), "\"hybrid\"");
  EXPECT_EQ(value_of(groups, "parallel.dp_shard"), "4");
  EXPECT_EQ(value_of(groups, "parallel.dp_replicate"), "2");
  EXPECT_EQ(value_of(groups, "parallel.tp"), "none");
}

/// dp_replicate, dp_shard, pp and tp as one file has them.
TEST_F(AccelerateTest, CopiesAreASizeOfTheirOwn) {
  const auto import_of = [&](const std::string& type, int processes, const std::string& sizes) {
    return accelerate("distributed_type: " + type + "\nnum_processes: " +
                      std::to_string(processes) + "\nparallelism_config: {" + sizes + "}\n");
  };
  const Import one = import_of("FSDP", 4, "dp_replicate_size: 1, dp_shard_size: 2, tp_size: 2");
  EXPECT_EQ(value_of(one, "parallel.strategy"), "\"fsdp\"");
  EXPECT_EQ(value_of(one, "parallel.dp_replicate"), "1");
  EXPECT_TRUE(one.no_meaning.empty());
  // The number of processes says the same.
  const Import known = import_of("FSDP", 4, "dp_shard_size: 2, tp_size: 2");
  EXPECT_EQ(value_of(known, "parallel.strategy"), "\"fsdp\"");
  EXPECT_EQ(value_of(known, "parallel.dp_replicate"), "none");
  const Import groups = import_of("FSDP", 8, "dp_shard_size: 2, tp_size: 2");
  EXPECT_EQ(value_of(groups, "parallel.strategy"), "\"hybrid\"");
  const Import copies = import_of("FSDP", 8, "dp_replicate_size: 2");
  EXPECT_EQ(value_of(copies, "parallel.strategy"), "\"hybrid\"");
  EXPECT_EQ(value_of(copies, "parallel.dp_replicate"), "2");
  const Import parts = import_of("MULTI_GPU", 4, "dp_replicate_size: 2, tp_size: 2");
  EXPECT_EQ(value_of(parts, "parallel.strategy"), "\"tensor\"");
  EXPECT_EQ(value_of(parts, "parallel.dp_replicate"), "2");
  const Import plain = import_of("MULTI_GPU", 4, "dp_replicate_size: 4");
  EXPECT_EQ(value_of(plain, "parallel.strategy"), "\"ddp\"");
  const Import off = import_of("MULTI_GPU", 4, "dp_replicate_size: 1, dp_shard_size: 1");
  EXPECT_EQ(value_of(off, "parallel.dp_replicate"), "none");
}

TEST_F(AccelerateTest, SizesThatAreNotTheProcessesAreRefused) {
  const auto refuses = [&](const std::string& type, int processes, const std::string& sizes,
                           std::initializer_list<std::string> parts) {
    expect_refused("distributed_type: " + type + "\nnum_processes: " + std::to_string(processes) +
                       "\nparallelism_config:\n  " + sizes + "\n",
                   parts);
  };
  refuses("FSDP", 4, "dp_shard_size: 4\n  tp_size: 2",
          {"`parallelism_config_dp_shard_size` 4 x `parallelism_config_tp_size` 2 need 8 processes",
           "`num_processes` is 4", "set num_processes to a multiple of 8", ":4:3"});
  refuses("FSDP", 8, "dp_replicate_size: 3\n  dp_shard_size: 2",
          {"need 6 processes", "set num_processes to 6, or change the sizes"});
  refuses("FSDP", 8, "dp_replicate_size: 1\n  dp_shard_size: 2\n  tp_size: 2",
          {"need 4 processes", "`num_processes` is 8"});
  refuses("MULTI_GPU", 4, "pp_size: 3", {"need 3 processes", "a multiple of 3"});
  refuses("NO", 1, "dp_replicate_size: 2", {"dp_replicate_size` is 2", "MULTI_GPU, FSDP"});
}

TEST_F(AccelerateTest, SizesOfSeveralAxesCompose) {
  const Import shards = accelerate("distributed_type: FSDP\nparallelism_config: {tp_size: 2}\n");
  EXPECT_EQ(value_of(shards, "parallel.strategy"), "\"fsdp\"");
  EXPECT_EQ(value_of(shards, "parallel.tp"), "2");
  const Import both =
      accelerate("distributed_type: MULTI_GPU\nparallelism_config: {tp_size: 2, pp_size: 4}\n");
  EXPECT_EQ(value_of(both, "parallel.strategy"), "\"ddp\"");
  EXPECT_EQ(value_of(both, "parallel.tp"), "2");
  EXPECT_EQ(value_of(both, "parallel.pp"), "4");
  const Import groups =
      accelerate("distributed_type: FSDP\nparallelism_config: {dp_shard_size: 2, tp_size: 2}\n");
  EXPECT_EQ(value_of(groups, "parallel.strategy"), "\"hybrid\"");
  EXPECT_EQ(value_of(groups, "parallel.dp_shard"), "2");
  EXPECT_EQ(value_of(groups, "parallel.tp"), "2");
  expect_refused("distributed_type: NO\nparallelism_config: {tp_size: 2}\n",
                 {"`parallelism_config.parallelism_config_tp_size` is 2", "MULTI_GPU, FSDP"});
}

TEST_F(AccelerateTest, Offload) {
  const Import deepspeed = accelerate(
      "distributed_type: DEEPSPEED\n"
      "deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, "
      "offload_param_device: cpu}\n");
  const Import fsdp =
      accelerate("distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true}\n");
  for (const Import& read : {deepspeed, fsdp}) {
    EXPECT_EQ(value_of(read, "parallel.offload.optimizer"), "\"cpu\"");
    EXPECT_EQ(value_of(read, "parallel.offload.base"), "\"cpu\"");
    EXPECT_EQ(value_of(read, "parallel.offload.params"), "\"cpu\"");
  }
  expect_refused("distributed_type: DEEPSPEED\ndeepspeed_config: {offload_param_device: nvme}\n",
                 {"nvme", "use cpu"});
}

TEST_F(AccelerateTest, NoMixedPrecisionIsADefault) {
  const LoadedConfig alone =
      load("parallel: {accelerate: a.yaml}\n",
           {"parallel.accelerate=" +
            write("a.yaml", "distributed_type: NO\nmixed_precision: no\n").string()});
  EXPECT_EQ(alone.config.model.dtype, DTypeChoice::kFp32);
  const LoadedConfig with_bf16 = load("train: {bf16: true}\nparallel: {accelerate: a.yaml}\n");
  EXPECT_EQ(with_bf16.config.model.dtype, DTypeChoice::kAuto);
  EXPECT_EQ(with_bf16.config.train.bf16, true);
}

TEST_F(AccelerateTest, ShippedFilesAreRead) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(shipped("accelerate"))) {
    const Import file = import_config(entry.path(), std::nullopt);
    EXPECT_EQ(file.tool, Tool::kAccelerate) << entry.path();
    EXPECT_TRUE(file.not_carried.empty()) << entry.path();
    EXPECT_TRUE(file.launch.processes) << entry.path();
    ++count;
  }
  EXPECT_EQ(count, 7U);
  EXPECT_EQ(value_of(import_config(shipped("accelerate/multi_node.yaml"), std::nullopt),
                     "parallel.strategy"),
            "\"hybrid\"");
}

TEST_F(AccelerateTest, StagesOfAPipeline) {
  const std::string stages = "\nparallelism_config: {parallelism_config_pp_size: 2}\n";
  const Import two = accelerate("distributed_type: MULTI_GPU\nnum_processes: 4" + stages);
  EXPECT_EQ(value_of(two, "parallel.strategy"), "\"pipeline\"");
  EXPECT_EQ(value_of(two, "parallel.pp"), "2");
  EXPECT_EQ(value_of(accelerate("distributed_type: FSDP" + stages), "parallel.pp"), "2");
  expect_refused("distributed_type: MEGATRON_LM\n",
                 {"`parallel.strategy: pipeline` with `parallel.pp`"});
  EXPECT_EQ(strategy("distributed_type: MULTI_GPU\nparallelism_config: {pp_size: 1}\n"), "\"ddp\"");
}

/// SHARD_GRAD_OP keeps whole weights, also of those that are trained. Whether some are is not known.
TEST_F(AccelerateTest, TrainedWeightsStayWhereTheyAreNotDivided) {
  const auto offloaded = [&](const std::string& strategy) {
    return accelerate(
        "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: true, "
        "fsdp_sharding_strategy: " +
        strategy + "}\n");
  };
  const Import whole = offloaded("SHARD_GRAD_OP"), divided = offloaded("FULL_SHARD");
  EXPECT_TRUE(has_key(whole.not_carried, "fsdp_config.fsdp_offload_params"));
  EXPECT_EQ(value_of(whole, "parallel.offload.params"), "none");
  EXPECT_EQ(value_of(whole, "parallel.offload.base"), "\"cpu\"");
  EXPECT_TRUE(divided.not_carried.empty());
}

}  // namespace
}  // namespace sftrun::foreign
