#include <fmt/format.h>

#include <chrono>

#include "foreign/import_test_base.h"
#include "sftrun/config/problem.h"
#include "support/expect_error.h"

namespace sftrun::foreign {
namespace {

class DeepSpeedTest : public ImportTest {
 protected:
  Import deepspeed(const std::string& text) { return import(text, Tool::kDeepSpeed); }
  void expect_refused(const std::string& text, std::initializer_list<std::string> parts) {
    test::expect_error<ConfigError>([&] { deepspeed(text); }, parts);
  }
};

TEST_F(DeepSpeedTest, Stages) {
  for (const auto& [stage, expected] : std::vector<std::pair<std::string, std::string>>{
           {"0", "\"ddp\""}, {"1", "\"zero1\""}, {"2", "\"zero2\""}, {"3", "\"zero3\""}})
    EXPECT_EQ(value_of(deepspeed(R"({"zero_optimization": {"stage": )" + stage + "}}"),
                       "parallel.strategy"),
              expected);
  expect_refused(R"({"zero_optimization": {"stage": 4}})",
                 {"`zero_optimization.stage` is 4", "file:1:33"});
  expect_refused(R"({"zero_optimization": {"stage": "three"}})",
                 {"`zero_optimization.stage` is `three`", "whole number"});
  expect_refused(R"({"zero_optimization": true})", {"`zero_optimization` is `true`", "a map"});
}

TEST_F(DeepSpeedTest, GroupsOfProcessesAreHybrid) {
  const Import hpz =
      deepspeed(R"({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}})");
  EXPECT_EQ(value_of(hpz, "parallel.strategy"), "\"hybrid\"");
  EXPECT_EQ(value_of(hpz, "parallel.dp_shard"), "8");
  EXPECT_TRUE(has_key(hpz.not_carried, "zero_optimization.zero_hpz_partition_size"));
  const Import mics = deepspeed(R"({"zero_optimization": {"mics_shard_size": 4, "stage": 3}})");
  EXPECT_EQ(value_of(mics, "parallel.dp_shard"), "4");
  EXPECT_TRUE(mics.not_carried.empty());
  for (const char* off : {"-1", "1", "0"})
    EXPECT_EQ(value_of(deepspeed(std::string(R"({"zero_optimization": {"stage": 3, )") +
                                 R"("mics_shard_size": )" + off + "}}"),
                       "parallel.strategy"),
              "\"zero3\"");
  expect_refused(R"({"zero_optimization": {"stage": 2, "zero_hpz_partition_size": 8}})",
                 {"is 8, but the stage is 2"});
}

TEST_F(DeepSpeedTest, OffloadInNewAndOldForm) {
  for (const auto& [text, field] :
       {std::pair{R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})",
                  "optimizer"},
        {R"({"zero_optimization": {"cpu_offload": true}})", "optimizer"},
        {R"({"zero_optimization": {"offload_param": {"device": "cpu", "pin_memory": true}}})",
         "base"},
        {R"({"zero_optimization": {"offload_param": {"device": "cpu"}}})", "params"},
        {R"({"zero_optimization": {"cpu_offload_params": true}})", "base"},
        {R"({"zero_optimization": {"cpu_offload_params": true}})", "params"},
        {R"({"activation_checkpointing": {"cpu_checkpointing": true}})", "activations"}})
    EXPECT_EQ(value_of(deepspeed(text), std::string("parallel.offload.") + field), "\"cpu\"")
        << text;
  for (const char* text :
       {R"({"zero_optimization": {"offload_optimizer": {"device": "none", "pin_memory": true}}})",
        R"({"zero_optimization": {"cpu_offload": false}})"})
    EXPECT_EQ(value_of(deepspeed(text), "parallel.offload.optimizer"), "none") << text;
  expect_refused(R"({"zero_optimization": {"offload_param": {"device": "nvme"}}})",
                 {"nvme", "use cpu", "file:1:"});
}

TEST_F(DeepSpeedTest, AutoIsLeftToTheRun) {
  const Import automatic = deepspeed(
      R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
          "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
          "bf16": {"enabled": "auto"}, "optimizer": {"type": "AdamW", "params": {"lr": "auto",
          "betas": "auto", "eps": "auto", "weight_decay": "auto"}}})");
  EXPECT_EQ(automatic.settings.size(), 1U);  // the type of the optimizer
  EXPECT_EQ(automatic.from_run.size(), 9U);
}

TEST_F(DeepSpeedTest, BatchSizes) {
  const Import all = deepspeed(
      R"({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4,
          "gradient_accumulation_steps": 2})");
  EXPECT_EQ(value_of(all, "train.global_batch_size"), "32");
  EXPECT_EQ(value_of(all, "train.batch_size"), "4");
  EXPECT_EQ(value_of(all, "train.grad_accum"), "2");
  expect_refused(R"({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4,
                     "gradient_accumulation_steps": 2})",
                 {"`train_batch_size` 30 is not a multiple of train_micro_batch_size_per_gpu 4 * "
                  "gradient_accumulation_steps 2 = 8",
                  "file:1:2", "file:1:26"});
  expect_refused(R"({"train_batch_size": 5, "gradient_accumulation_steps": 2})",
                 {"not a multiple of gradient_accumulation_steps 2"});
  expect_refused(R"({"train_batch_size": 0})", {"`train_batch_size` is `0`"});
}

TEST_F(DeepSpeedTest, OptimizerAndSchedule) {
  const Import full = deepspeed(
      R"({"optimizer": {"type": "Adam", "params": {"lr": 3e-5, "betas": [0.8, 0.99], "eps": 1e-7,
          "weight_decay": 0.1, "torch_adam": true, "adam_w_mode": true}},
          "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0,
          "warmup_max_lr": 3e-5, "warmup_num_steps": 20, "total_num_steps": 200,
          "warmup_type": "linear"}}})");
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, std::string>>{{"train.optimizer", "\"adamw\""},
                                                        {"train.learning_rate", "3e-05"},
                                                        {"train.adam_beta1", "0.8"},
                                                        {"train.adam_beta2", "0.99"},
                                                        {"train.adam_epsilon", "1e-07"},
                                                        {"train.weight_decay", "0.1"},
                                                        {"train.scheduler", "\"linear\""},
                                                        {"train.warmup_steps", "20"},
                                                        {"train.max_steps", "200"}})
    EXPECT_EQ(value_of(full, field), value) << field;
  EXPECT_TRUE(full.not_carried.empty());
  EXPECT_TRUE(has_key(deepspeed(R"({"scheduler": {"type": "WarmupLR"}})").not_carried,
                      "scheduler.type"));  // its warm-up is logarithmic
  expect_refused(R"({"optimizer": {"type": "OneBitAdam"}})",
                 {"`optimizer.type` is `OneBitAdam`", "Adam, AdamW, Lion, Muon, SGD"});
  expect_refused(R"({"scheduler": {"type": "OneCycle"}})", {"`scheduler.type` is `OneCycle`"});
  expect_refused(R"({"optimizer": {"params": {"adam_w_mode": false}}})", {"adam_w_mode"});
  expect_refused(R"({"optimizer": {"params": {"lr": 1e-4}},
                     "scheduler": {"params": {"warmup_max_lr": 1e-3}}})",
                 {"`optimizer.params.lr` says train.learning_rate 1e-4", "says 1e-3"});
  expect_refused(R"({"optimizer": {"params": {"betas": [0.9]}}})", {"two numbers"});
}

TEST_F(DeepSpeedTest, Numbers) {
  const Import bf16 = deepspeed(R"({"bf16": {"enabled": true}, "fp16": {"enabled": false}})");
  EXPECT_EQ(value_of(bf16, "train.bf16"), "true");
  EXPECT_EQ(value_of(bf16, "train.fp16"), "false");
  expect_refused(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})",
                 {"`bf16.enabled` and `fp16.enabled` are both true"});
  expect_refused(R"({"amp": {"enabled": true}})",
                 {"`amp.enabled`", "set it to false, and bf16.enabled or fp16.enabled to true"});
  EXPECT_TRUE(has_key(deepspeed(R"({"fp16": {"enabled": true, "loss_scale": 128}})").not_carried,
                      "fp16.loss_scale"));
}

TEST_F(DeepSpeedTest, TabsAndCommentLinesAreAccepted) {
  const Import file =
      deepspeed("// a comment\n{\n\t\"zero_optimization\": {\n\t\t\"stage\": 2\n\t}\n}\n");
  EXPECT_EQ(value_of(file, "parallel.strategy"), "\"zero2\"");
  EXPECT_NE(file.settings.front().place.find("file:4:3"), std::string::npos)
      << file.settings.front().place;
}

TEST_F(DeepSpeedTest, CommentsBehindValuesAreSkippedOutsideStrings) {
  const Import read = deepspeed(
      "// configs/deepspeed_custom.json\n{ // begins\n  \"zero_optimization\": {\n"
      "    \"stage\": 3,     // More \"aggressive saving\r\n"
      "    \"cpu_offload\": true  // Offload to CPU\n  }\n}\n// the end\n");
  EXPECT_EQ(value_of(read, "parallel.strategy"), "\"zero3\"");
  expect_refused("{\"zero_optimization\": {\"stage\": \"a//b\"}}", {"`a//b`"});
  expect_refused("{\"zero_optimization\": {\"stage\": \"c\\\"//d\"}} // e", {"//d`"});
}

TEST_F(DeepSpeedTest, UnknownKeysAndOtherFilesAreErrors) {
  expect_refused(R"({"zero_optimization": {"stge": 2}})",
                 {"unknown key `zero_optimization.stge` in a file of DeepSpeed",
                  "did you mean `zero_optimization.stage`?"});
  expect_refused(R"({"zero_optimization.stage": 2})", {"unknown key `zero_optimization.stage`"});
  expect_refused(R"({"zero_optimization": )", {"file:1"});
  expect_refused("[1]", {"the file is a list"});
}

TEST_F(DeepSpeedTest, ShippedFilesLeaveAllButTheStageToTheRun) {
  for (const auto& [name, strategy] : std::vector<std::pair<std::string, std::string>>{
           {"zero2.json", "\"zero2\""}, {"zero3.json", "\"zero3\""}}) {
    const Import file = import_config(shipped("deepspeed/" + name), std::nullopt);
    EXPECT_EQ(file.tool, Tool::kDeepSpeed);
    EXPECT_EQ(file.settings.size(), 1U);
    EXPECT_EQ(value_of(file, "parallel.strategy"), strategy);
    EXPECT_TRUE(file.not_carried.empty());
  }
}

TEST_F(DeepSpeedTest, OffloadKeysSayNothingThatIsUntrue) {
  const Import on = deepspeed(
      R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": true}}})");
  for (const ImportNote& note : on.no_meaning)
    EXPECT_EQ(note.why.find("only used with offload"), std::string::npos) << note.key;
  const auto weights = [&](const char* stage) {
    return deepspeed(fmt::format(
        R"({{"zero_optimization": {{"stage": {}, "offload_param": {{"device": "cpu"}}}}}})",
        stage));
  };
  EXPECT_TRUE(weights("3").not_carried.empty());
  const Import of_stage_2 = weights("2");
  EXPECT_TRUE(has_key(of_stage_2.not_carried, "zero_optimization.offload_param.device"));
  EXPECT_EQ(value_of(of_stage_2, "parallel.offload.params"), "none");
}

/// With the stage of ZeRO, as Accelerate's sizes and Axolotl's.
TEST_F(DeepSpeedTest, AxesCombine) {
  const Import both = deepspeed(R"({"zero_optimization": {"stage": 1},
                                    "tensor_parallel": {"autotp_size": 2, "tp_overlap_comm": true},
                                    "pipeline": {"stages": 4, "partition": "best"}})");
  EXPECT_EQ(value_of(both, "parallel.strategy"), "\"zero1\"");
  EXPECT_EQ(value_of(both, "parallel.tp"), "2");
  EXPECT_EQ(value_of(both, "parallel.pp"), "4");
  EXPECT_TRUE(has_key(both.no_meaning, "pipeline.partition"));
  EXPECT_TRUE(both.not_carried.empty());
  for (const char* off :
       {R"({"tensor_parallel": {"autotp_size": 0}, "sequence_parallel_size": 1})",
        R"({"tensor_parallel": {"autotp_size": 1}, "pipeline": {"stages": 1}})",
        R"({"pipeline": {"stages": "auto", "activation_checkpoint_interval": 0}})"}) {
    const Import alone = deepspeed(off);
    EXPECT_TRUE(alone.settings.empty()) << off;
    EXPECT_TRUE(alone.not_carried.empty()) << off;
  }
  const Import groups = deepspeed(R"({"zero_optimization": {"stage": 3, "mics_shard_size": 4},
                                      "tensor_parallel": {"autotp_size": 2}})");
  EXPECT_EQ(value_of(groups, "parallel.strategy"), "\"hybrid\"");
  EXPECT_EQ(value_of(groups, "parallel.dp_shard"), "4");
  EXPECT_EQ(value_of(groups, "parallel.tp"), "2");
  EXPECT_EQ(value_of(deepspeed(R"({"sequence_parallel_size": 2})"), "parallel.cp"), "2");
  expect_refused(R"({"tensor_parallel": {"autotp_size": "two"}})", {"it takes a whole number"});
}

TEST_F(DeepSpeedTest, ManyKeysTakeLittleTime) {
  std::string keys;
  for (int i = 0; i < 40'000; ++i) keys += fmt::format("\"key number {}\": {}, ", i, i);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(
      import("{\"zero_optimization\": {\"stage\": 1, " + keys + "\"z\": 1}}", Tool::kDeepSpeed),
      ConfigError);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(passed.count(), 10);  // with the square of the keys it took minutes
}

}  // namespace
}  // namespace sftrun::foreign
