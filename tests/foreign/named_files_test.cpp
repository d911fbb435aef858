#include "foreign/import_test_base.h"
#include "sftrun/config/problem.h"
#include "support/expect_error.h"

namespace sftrun::foreign {
namespace {

class NamedFilesTest : public ImportTest {
 protected:
  NamedFilesTest() {
    write("ds.json",
          R"({"zero_optimization": {"stage": 3, "overlap_comm": true}, "gradient_clipping": 0.5,
              "train_micro_batch_size_per_gpu": "auto"})");
    write("acc.yaml", "distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: bf16\n");
  }
  static constexpr const char* kDeepSpeed = "parallel: {deepspeed: ds.json}\n";

  void expect_refused(const std::string& text, std::initializer_list<std::string> parts) {
    test::expect_error<ConfigError>([&] { load(text); }, parts);
  }
};

TEST_F(NamedFilesTest, SetFieldsThatTheRunLeavesOpen) {
  const LoadedConfig loaded = load(kDeepSpeed);
  EXPECT_EQ(loaded.config.parallel.strategy, Strategy::kZero3);
  EXPECT_EQ(loaded.config.train.max_grad_norm, 0.5);
  EXPECT_TRUE(loaded.config.train.batch_size.is_auto());
  EXPECT_EQ(loaded.overrides.size(), 2U);
  EXPECT_EQ(loaded.overrides[0].source,
            "zero_optimization.stage in " + (directory_ / "ds.json").string() + ":1");
  ASSERT_EQ(loaded.notes.size(), 1U);
  EXPECT_NE(loaded.notes[0].find("zero_optimization.overlap_comm"), std::string::npos);
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_TRUE(loaded.config.parallel.deepspeed.empty());  // config.resolved.yaml has its values
}

TEST_F(NamedFilesTest, LaunchSettingsAreApart) {
  const LoadedConfig loaded = load("parallel: {accelerate: acc.yaml}\n");
  EXPECT_EQ(loaded.accelerate.processes, 4);
  EXPECT_EQ(loaded.accelerate.file, directory_ / "acc.yaml");
  EXPECT_EQ(loaded.config.model.dtype, DTypeChoice::kBf16);
}

TEST_F(NamedFilesTest, EqualValuesAndAutoAgree) {
  for (const char* text :
       {"train: {max_grad_norm: 5e-1}\nparallel: {deepspeed: ds.json, strategy: zero3}\n",
        "parallel: {deepspeed: ds.json, strategy: fsdp}\n",
        "train: {max_grad_norm: }\nparallel: {deepspeed: ds.json, strategy: auto}\n"}) {
    const LoadedConfig loaded = load(text);
    EXPECT_EQ(loaded.config.train.max_grad_norm, 0.5) << text;
    EXPECT_TRUE(loaded.config.parallel.strategy == Strategy::kZero3 ||
                loaded.config.parallel.strategy == Strategy::kFsdp)
        << text;
  }
}

TEST_F(NamedFilesTest, AnotherValueInTheRunIsAnErrorAtBothPlaces) {
  expect_refused(
      "train: {max_grad_norm: 1}\nparallel: {deepspeed: ds.json, strategy: ddp}\n",
      {"`train.max_grad_norm` is 1, but `gradient_clipping`", "makes it 0.5", "run.yaml:3:9",
       "ds.json:1:", "`parallel.strategy` is ddp", "remove `parallel.strategy` from the run"});
  expect_refused("train: {fp16: true}\nparallel: {accelerate: acc.yaml}\n",
                 {"`train.fp16` is true, but `model.dtype` is bf16", "acc.yaml:3:1"});
}

TEST_F(NamedFilesTest, CommandLineAndEnvironmentWin) {
  set("SFTRUN_TRAIN__MAX_GRAD_NORM", "2");
  const LoadedConfig loaded = load(kDeepSpeed, {"parallel.strategy=ddp"});
  EXPECT_EQ(loaded.config.parallel.strategy, Strategy::kDdp);
  EXPECT_EQ(loaded.config.train.max_grad_norm, 2);
}

/// Also where the run's own value contradicts the file.
TEST_F(NamedFilesTest, TheCommandLineDecidesBetweenTheRunAndAFile) {
  const LoadedConfig loaded = load("parallel: {deepspeed: ds.json, accelerate: , strategy: fsdp}\n",
                                   {"parallel.strategy=zero2"});
  EXPECT_EQ(loaded.config.parallel.strategy, Strategy::kZero2);
}

TEST_F(NamedFilesTest, TheMachineFileIsBelow) {
  set("SFTRUN_MACHINE_CONFIG", write("machine.yaml", "strategy: zero1\ndtype: fp32\n").string());
  const LoadedConfig loaded = load("parallel: {deepspeed: ds.json, accelerate: }\n");
  EXPECT_EQ(loaded.config.parallel.strategy, Strategy::kZero3);
  EXPECT_EQ(loaded.config.model.dtype, DTypeChoice::kFp32);
}

TEST_F(NamedFilesTest, TheHighestLayerNamesTheFile) {
  write("other.json", R"({"zero_optimization": {"stage": 1}})");
  const std::string other = "parallel.deepspeed=" + (directory_ / "other.json").string();
  EXPECT_EQ(load(kDeepSpeed, {other}).config.parallel.strategy, Strategy::kZero1);
  EXPECT_EQ(load(kDeepSpeed, {"parallel.deepspeed="}).config.parallel.strategy, Strategy::kAuto);
}

TEST_F(NamedFilesTest, BothFilesMustAgree) {
  expect_refused("parallel: {deepspeed: ds.json, accelerate: acc.yaml}\n",
                 {"`distributed_type` says parallel.strategy ddp", "says zero3", "acc.yaml:1:1",
                  "ds.json:1:"});
  write("acc.yaml",
        "distributed_type: DEEPSPEED\nnum_processes: 4\n"
        "deepspeed_config: {zero_stage: 3}\n");
  const LoadedConfig loaded = load("parallel: {deepspeed: ds.json, accelerate: acc.yaml}\n");
  EXPECT_EQ(loaded.config.parallel.strategy, Strategy::kZero3);
  EXPECT_EQ(loaded.accelerate.processes, 4);
}

TEST_F(NamedFilesTest, BatchSizesMultiplyWithTheProcesses) {
  write("ds.json", R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,
                       "gradient_accumulation_steps": 2})");
  LoadedConfig loaded = load(kDeepSpeed);
  resolve(loaded, "run.yaml", /*world_size=*/2);
  LoadedConfig other = load(kDeepSpeed);
  test::expect_error<ConfigError>([&] { resolve(other, "run.yaml", /*world_size=*/4); },
                                  {"global_batch_size 8 is not train.batch_size 2", "ds.json:1:2"});
}

TEST_F(NamedFilesTest, AFileThatIsMissingOrWrongIsNamed) {
  test::expect_error<DataError>([&] { load("parallel: {deepspeed: none.json}\n"); },
                                {"parallel.deepspeed: no such file: none.json", "run.yaml:3:23"});
  write("ds.json", R"({"zero_optimization": {"offload_param": {"device": "nvme"}}})");
  expect_refused(kDeepSpeed, {"nvme", "ds.json:1:"});
}

TEST_F(NamedFilesTest, AFileOfTheWrongToolIsOneError) {
  expect_refused("parallel: {deepspeed: acc.yaml}\n",
                 {"this is a file of Accelerate, not of DeepSpeed",
                  "name it in parallel.accelerate or --accelerate-config"});
  expect_refused("parallel: {accelerate: ds.json}\n",
                 {"this is a file of DeepSpeed", "parallel.deepspeed or --deepspeed"});
  write("ds.json", "");
  expect_refused(kDeepSpeed, {"the file is empty", "ds.json"});
}

/// One key is enough, if no other tool's file and no run has it.
TEST_F(NamedFilesTest, ASmallFileOfAnotherToolIsNoRun) {
  const auto expect_answer = [&](const char* text, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(text);
    test::expect_error<ConfigError>([&] { load_config(write("small", text), {}); }, parts);
  };
  for (const char* text :
       {R"({"zero_optimization": {"stage": 2}})", R"({"train_micro_batch_size_per_gpu": 4})",
        R"({"bf16": {"enabled": true}})", R"({"optimizer": {"type": "AdamW"}})"})
    expect_answer(text, {"this is a file of DeepSpeed, not of sftrun", "--deepspeed"});
  expect_answer("mixed_precision: bf16\n", {"this is a file of Accelerate"});
  expect_answer("gradient_accumulation_steps: 4\n", {"unknown key `gradient_accumulation_steps`"});
  expect_answer("train_batch_size: 4\nepochs: 3\n", {"unknown key `train_batch_size`"});
}

TEST_F(NamedFilesTest, BrokenJsonIsCalledJson) {
  write("ds.json", "{\n  \"zero_optimization\": {\n    \"stage\": 3\n");
  expect_refused(kDeepSpeed, {"not valid JSON: unexpected end of input", "ds.json:4:"});
}

TEST_F(NamedFilesTest, OffloadIsShownInTheWordsOfTheField) {
  write("ds.json", R"({"zero_optimization": {"cpu_offload_params": true}})");
  const LoadedConfig lora = load(kDeepSpeed, {"parallel.offload.optimizer=true"});
  ASSERT_EQ(lora.overrides.size(), 2U);
  for (const Override& one : lora.overrides) EXPECT_EQ(one.value, "cpu") << one.key;
  EXPECT_TRUE(lora.warnings.empty());
  const LoadedConfig full = load(kDeepSpeed, {"tuning.mode=full"});
  EXPECT_EQ(full.config.parallel.offload.base, Offload::kNone);
  EXPECT_EQ(full.config.parallel.offload.params, Offload::kCpu);
  EXPECT_TRUE(full.warnings.empty());
}

TEST_F(NamedFilesTest, NothingIsOffloadedIfAnOverrideSaysSo) {
  write("ds.json", R"({"zero_optimization": {"cpu_offload": true}})");
  for (const char* word : {"none", "false"})
    EXPECT_EQ(load(kDeepSpeed, {std::string("parallel.offload=") + word})
                  .config.parallel.offload.optimizer,
              Offload::kNone);
  expect_refused("parallel: {deepspeed: ds.json, offload: none}\n",
                 {"`parallel.offload.optimizer` is none, but"});
}

TEST_F(NamedFilesTest, OffloadKeysAreSuggested) {
  for (const auto& [word, expected] :
       {std::pair{"offload.optimizer=cpu", "did you mean `parallel.offload.optimizer`?"},
        {"parallel.offload.gradients=cpu",
         "did you mean one of optimizer, activations, base, params?"},
        {"parallel.pp_size=2", "use `parallel.pp`"},
        {"parallel.cpu_offload=true", "use `parallel.offload`"}})
    test::expect_error<ConfigError>([&, key = word] { load("", {key}); }, {expected});
}

}  // namespace
}  // namespace sftrun::foreign
