#include <fmt/format.h>

#include "config_test_base.h"
#include "sftrun/config/problem.h"
#include "support/expect_error.h"

namespace sftrun::config {
namespace {

using test::expect_error;

TEST_F(ConfigTest, AShareOfTheStepsIsTheRatio) {
  expect_error<ConfigError>([&] { load("train: {warmup_steps: 0.03}\n"); },
                            {"`train.warmup_steps` is `0.03`", "train.warmup_ratio: 0.03"});
  expect_error<ConfigError>([&] { load("train: {warmup_ratio: 20}\n"); },
                            {"`train.warmup_ratio` is `20`", "train.warmup_steps: 20"});
}

TEST_F(ConfigTest, AKeyWithDotsIsAnsweredWithEachLevel) {
  expect_error<ConfigError>([&] { load("tuning.lora.r: 4\n"); },
                            {"unknown key `tuning.lora.r`",
                             "write `r:` indented below `lora:` indented below `tuning:`"});
}

TEST_F(ConfigTest, NcclTimeoutIsAnswered) {
  ASSERT_EQ(setenv("NCCL_TIMEOUT", "1800", 1), 0);
  const auto warnings = load("").warnings;
  unsetenv("NCCL_TIMEOUT");
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("parallel.timeout=1800s"), std::string::npos) << warnings[0];
}

TEST_F(ConfigTest, DefaultsAreTheHeaders) {
  const LoadedConfig loaded = load("");
  EXPECT_EQ(loaded.config.model.max_seq_len, 2048);
  EXPECT_EQ(loaded.config.tuning.lora.target_modules.names, std::vector<std::string>{"all-linear"});
  EXPECT_TRUE(loaded.config.train.batch_size.is_auto());
  EXPECT_FALSE(loaded.config.train.learning_rate);
  EXPECT_TRUE(loaded.overrides.empty());
  EXPECT_TRUE(loaded.warnings.empty());
  EXPECT_TRUE(loaded.machine.file.empty());
}

// The configuration of the SFT-Play guide, with data and validation data named.
TEST_F(ConfigTest, SftPlaysKeysWorkAsWrittenThere) {
  const LoadedConfig loaded = load_config(write("multi_gpu_config.yaml", R"(
model:
  name: "google/gemma-3-27b-it"    # Large model
  max_seq_len: 2048
tuning:
  mode: "qlora"
  backend: "bnb"
  lora: { r: 32, alpha: 64, dropout: 0.1 }
train:
  batch_size: "auto"
  grad_accum: "auto"
  bf16: true
  gradient_checkpointing: true
  ddp_find_unused_parameters: false
  ddp_broadcast_buffers: false
  ddp_bucket_cap_mb: 200
  dataloader_num_workers: 4
  dataloader_pin_memory: true
  predict_with_generate: true
  generation_num_beams: 1
  generation_max_new_tokens: 64
  eval_strategy: "steps"
  eval_steps: 200
  eval_do_concat_batches: false
  eval_accumulation_steps: 8
)"),
                                          {"data.train=t.jsonl", "data.val=v.jsonl"});
  const RunConfig& config = loaded.config;
  EXPECT_EQ(config.model.name, "google/gemma-3-27b-it");
  EXPECT_EQ(config.tuning.backend, TuningBackend::kBnb);
  EXPECT_EQ(config.tuning.lora.r, 32);
  EXPECT_EQ(config.train.bf16, true);
  EXPECT_EQ(config.train.ddp_bucket_cap_mb, 200);
  EXPECT_EQ(config.train.eval_strategy, EvalStrategy::kSteps);
  EXPECT_TRUE(config.train.predict_with_generate);
  EXPECT_EQ(config.train.generation_max_new_tokens, 64);
  ASSERT_EQ(loaded.warnings.size(), 2u);  // one a key
  EXPECT_EQ(loaded.warnings[0],
            fmt::format("train.eval_do_concat_batches has no effect: evaluation keeps no logits, "
                        "only sums, so there is nothing to bound or to collect ({}:24:3)",
                        (directory_ / "multi_gpu_config.yaml").string()));
}

TEST_F(ConfigTest, PrecedenceAndOverridesInForce) {
  set("SFTRUN_MACHINE_CONFIG", write("machine.yaml",
                                     "dtype: fp32\nstrategy: ddp\ndevices: [0, 2]\nnodes: 2\n"
                                     "node_rank: 1\nmaster: node-a:29500\n")
                                   .string());
  set("SFTRUN_TRAIN__BATCH_SIZE", "2");
  set("SFTRUN_TRAIN__EPOCHS", "5");
  set("SFTRUN_TRAIN__MAX_STEPS", "");  // set to nothing: not set
  const LoadedConfig loaded =
      load("train: {batch_size: 1, epochs: 4, grad_accum: 3}\nparallel: {strategy: auto}",
           {"train.batch_size=4"});
  EXPECT_EQ(loaded.config.train.batch_size.value, 4);
  EXPECT_EQ(loaded.config.train.epochs, 5);
  EXPECT_EQ(loaded.config.train.grad_accum.value, 3);
  EXPECT_EQ(loaded.config.model.dtype, DTypeChoice::kFp32);
  EXPECT_EQ(loaded.config.parallel.strategy, Strategy::kAuto);
  EXPECT_EQ(loaded.machine.devices, "0,2");
  set("SFTRUN_MACHINE_CONFIG", write("one.yaml", "devices: [2]\n").string());
  EXPECT_EQ(load("").machine.devices, "2,") << "GPU 2, not two GPUs";
  EXPECT_EQ(loaded.machine.nodes, 2);
  EXPECT_EQ(loaded.machine.node_rank, 1);
  EXPECT_EQ(loaded.machine.master, "node-a:29500");
  ASSERT_EQ(loaded.overrides.size(), 3u);
  EXPECT_EQ(loaded.overrides[0].key, "model.dtype");
  EXPECT_EQ(loaded.overrides[0].source, (directory_ / "machine.yaml").string() + ":1");
  EXPECT_EQ(loaded.overrides[1].key, "train.epochs");
  EXPECT_EQ(loaded.overrides[1].source, "SFTRUN_TRAIN__EPOCHS");
  EXPECT_EQ(loaded.overrides[2].key, "train.batch_size");
  EXPECT_EQ(loaded.overrides[2].value, "4");
  EXPECT_EQ(loaded.overrides[2].source, "command line");
  EXPECT_EQ(loaded.place_of("train.batch_size"), "train.batch_size=4 from the command line");
  EXPECT_EQ(loaded.place_of("train.grad_accum"), (directory_ / "run.yaml").string() + ":3:35");
}

TEST_F(ConfigTest, HalfPrecisionOfTheRunTakesPrecedence) {
  write("sftrun/machine.yaml", "dtype: fp32\n");  // found by XDG_CONFIG_HOME
  LoadedConfig loaded = load("train: {bf16: true}");
  EXPECT_EQ(loaded.config.model.dtype, DTypeChoice::kAuto);
  EXPECT_TRUE(loaded.overrides.empty());
  resolve(loaded, "run.yaml", 1);
  EXPECT_EQ(loaded.config.model.dtype, DTypeChoice::kBf16);
  EXPECT_EQ(load("").config.model.dtype, DTypeChoice::kFp32);
}

TEST_F(ConfigTest, MachineFileProblemsArePlaced) {
  set("SFTRUN_MACHINE_CONFIG",
      write("machine.yaml", "device: 2\ndevices: some\ndtype: int4\n").string());
  expect_error<ConfigError>([&] { load(""); },
                            {"unknown key `device`", "machine.yaml:1:1", "did you mean `devices`?",
                             "machine.yaml:2:1", "`model.dtype` is `int4`", "machine.yaml:3:1"});
  set("SFTRUN_MACHINE_CONFIG", (directory_ / "nowhere.yaml").string());
  expect_error<DataError>([&] { load(""); }, {"nowhere.yaml"});
}

// Without the number of machines each of them would train by itself.
TEST_F(ConfigTest, AMachineFileSaysHowManyMachinesThereAre) {
  set("SFTRUN_MACHINE_CONFIG", write("machine.yaml", "node_rank: 3\n").string());
  expect_error<ConfigError>([&] { load(""); },
                            {"`node_rank` has no effect without `nodes`", "add nodes: N"});
  set("SFTRUN_MACHINE_CONFIG", write("machine.yaml", "master: node-a:29500\n").string());
  expect_error<ConfigError>([&] { load(""); }, {"`master` has no effect without `nodes`"});
  set("SFTRUN_MACHINE_CONFIG", write("machine.yaml", "master: ':29500'\nnode_rank: 0\n").string());
  load("");
}

TEST_F(ConfigTest, ABrokenLinkIsNoAbsentMachineFile) {
  std::filesystem::create_directories(directory_ / "sftrun");
  std::filesystem::create_symlink("nowhere.yaml", directory_ / "sftrun" / "machine.yaml");
  expect_error<DataError>([&] { load(""); },
                          {"a broken symbolic link to nowhere.yaml", "sftrun/machine.yaml"});
}

TEST_F(ConfigTest, OverridesAreTypedAsYaml) {
  const LoadedConfig loaded = load(
      "tuning: {mode: partial}\ntrain: {max_steps: 7, eval_strategy: epoch}",
      {"tuning.trainable=[norm, 'layers\\.1\\.']", "train.max_steps=null", "train.eval_strategy=no",
       "data.packing=off", "train.learning_rate=1e-3", "model.chat_template={{ messages }}: # *x",
       "output.dir=\"a b\"", "data.chat_template_kwargs.enable_thinking=false",
       "data.chat_template_kwargs.tools.names=[a, 1]"});
  EXPECT_EQ(loaded.config.tuning.trainable, (std::vector<std::string>{"norm", "layers\\.1\\."}));
  EXPECT_FALSE(loaded.config.train.max_steps);
  EXPECT_EQ(loaded.config.train.eval_strategy, EvalStrategy::kNo);
  EXPECT_FALSE(loaded.config.data.packing);
  EXPECT_EQ(loaded.config.train.learning_rate, 1e-3);
  EXPECT_EQ(loaded.config.model.chat_template, "{{ messages }}: # *x");
  EXPECT_EQ(loaded.config.output.dir, "a b");
  EXPECT_EQ(loaded.config.data.chat_template_kwargs.dump(),
            R"({"enable_thinking":false,"tools":{"names":["a",1]}})");
}

TEST_F(ConfigTest, NumbersInsideMapsAreKeptOrRefused) {
  const auto load_variables = [&](const std::string& variables) {
    const std::string data = "model: {name: m}\ndata:\n  train: t.jsonl\n";
    return load_config(write("run.yaml", data + "  chat_template_kwargs: " + variables), {});
  };
  EXPECT_EQ(load_variables("{a: [18446744073709551615, -7], b: '" + std::string(30, '1') + "'}")
                .config.data.chat_template_kwargs.dump(),
            R"({"a":[18446744073709551615,-7],"b":"111111111111111111111111111111"})");
  expect_error<ConfigError>(
      [&] { load_variables("{a: [{b: -18446744073709551616}]}"); },
      {"`data.chat_template_kwargs` has the number -18446744073709551616", ":4", "in quotes"});
  expect_error<ConfigError>([&] { load("", {"data.chat_template_kwargs.a=18446744073709551616"}); },
                            {"`data.chat_template_kwargs.a` has the number", "in quotes"});
}

TEST_F(ConfigTest, EnvironmentReachesInsideMaps) {
  set("SFTRUN_DATA__CHAT_TEMPLATE_KWARGS__DEPTH", "3");
  set("SFTRUN_TUNING__LORA__TARGET_MODULES", "[q_proj, v_proj]");
  const LoadedConfig loaded = load("");
  EXPECT_EQ(loaded.config.data.chat_template_kwargs.dump(), R"({"depth":3})");
  EXPECT_EQ(loaded.config.tuning.lora.target_modules.names,
            (std::vector<std::string>{"q_proj", "v_proj"}));
}

TEST_F(ConfigTest, ReportsMistakesInTheEnvironment) {
  set("SFTRUN_TRAIN_BATCH_SIZE", "4");
  const LoadedConfig loaded = load("");
  ASSERT_EQ(loaded.warnings.size(), 1u);
  EXPECT_EQ(loaded.warnings[0],
            "SFTRUN_TRAIN_BATCH_SIZE in the environment has no effect; did you mean "
            "SFTRUN_TRAIN__BATCH_SIZE?");
  set("SFTRUN_OUTPUT", "runs/a");
  std::string warnings;
  for (const std::string& warning : load("").warnings) warnings += warning;
  EXPECT_NE(warnings.find("`output` is a section; name one of its keys"), std::string::npos);
  set("SFTRUN_TRAIN__BACH_SIZE", "4");
  expect_error<ConfigError>([&] { load(""); }, {"unknown key `train.bach_size`",
                                                "SFTRUN_TRAIN__BACH_SIZE=4 from the environment",
                                                "did you mean `train.batch_size`?"});
}

TEST_F(ConfigTest, TensorBoardIsInTheListOfTrackers) {
  const auto output = [&](const std::string& settings) {
    return load("output: {" + settings + "}\n").config.output;
  };
  const std::vector<std::string> initial = {"tensorboard", "jsonl"}, jsonl = {"jsonl"};
  EXPECT_EQ(output("").report_to, initial);
  EXPECT_TRUE(output("").tensorboard);
  EXPECT_EQ(output("tensorboard: false").report_to, jsonl);
  EXPECT_FALSE(output("report_to: [mlflow]").tensorboard);
  EXPECT_FALSE(output("report_to: []").tensorboard);
  EXPECT_TRUE(output("report_to: tensorboard").tensorboard);
  EXPECT_FALSE(output("report_to: wandb, tensorboard: false").tensorboard);
  EXPECT_ANY_THROW(output("report_to: [tensorboard], tensorboard: false"));
  EXPECT_ANY_THROW(output("report_to: [mlflow], tensorboard: true"));
}

TEST_F(ConfigTest, Yaml11BooleansAndAliases) {
  const RunConfig config = load(
                               "tuning: {backend: unsloth}\noutput: {tensorboard: NO}\n"
                               "train: {eval_strategy: off, bf16: Yes, optimizer: adamw_torch, "
                               "gradient_checkpointing: on}\n")
                               .config;
  EXPECT_EQ(config.tuning.backend, TuningBackend::kFused);
  EXPECT_FALSE(config.output.tensorboard);
  EXPECT_EQ(config.train.eval_strategy, EvalStrategy::kNo);
  EXPECT_EQ(config.train.bf16, true);
  EXPECT_EQ(config.train.optimizer, Optimizer::kAdamW);
  EXPECT_EQ(config.train.gradient_checkpointing, Checkpointing::kLayer);
}

TEST_F(ConfigTest, OtherTrainersNamesOfEightBitAdamW) {
  for (const char* word : {"adamw_8bit", "adamw_bnb_8bit"}) {
    EXPECT_EQ(load(std::string("train: {optimizer: ") + word + "}\n").config.train.optimizer,
              Optimizer::kAdamW8bit)
        << word;
  }
}

TEST_F(ConfigTest, MergeKeysAndAnchors) {
  const LoadedConfig loaded = load(R"(
tuning:
  lora: &small { r: 4, alpha: 8 }
train:
  <<: [{ epochs: 2, batch_size: 3 }, { epochs: 9, seed: 5 }]
  batch_size: 1
)");
  EXPECT_EQ(loaded.config.tuning.lora.r, 4);
  EXPECT_EQ(loaded.config.train.epochs, 2);
  EXPECT_EQ(loaded.config.train.seed, 5);
  EXPECT_EQ(loaded.config.train.batch_size.value, 1);
}

TEST_F(ConfigTest, EmptyValuesGiveDefaults) {
  const LoadedConfig loaded =
      load("train:\n  epochs:\n  max_steps: ~\ntuning:\n  lora:\nparallel:\n");
  EXPECT_EQ(loaded.config.train.epochs, 3);
  EXPECT_EQ(loaded.config.tuning.lora.r, 16);
}

/// As in a file.
TEST_F(ConfigTest, ASectionOfNothingHasItsDefaults) {
  const std::string rollouts =
      "train:\n  objective: grpo\n  rollouts: {n: 4, environment: cat, reward: [number]}\n";
  for (const char* nothing : {"null", "~", ""}) {
    const LoadedConfig loaded =
        load(rollouts, {"train.rollouts.n=2", std::string("train.rollouts=") + nothing});
    EXPECT_FALSE(loaded.config.train.has_rollouts()) << nothing;
    EXPECT_EQ(to_json(loaded.config)["train"]["rollouts"],
              to_json(RunConfig())["train"]["rollouts"]);
    EXPECT_EQ(loaded.config.train.objective, Objective::kGrpo);
    ASSERT_EQ(loaded.overrides.size(), 1U) << "what came before is undone";
    EXPECT_EQ(loaded.overrides[0].key, "train.rollouts");
    EXPECT_EQ(loaded.overrides[0].value, "null");
  }
  EXPECT_EQ(
      load(rollouts, {"train.rollouts=null", "train.rollouts.reward=[{name: length, target: 3}]"})
          .config.train.rollouts.n,
      RolloutsConfig().n)
      << "what comes later is set";
  EXPECT_EQ(load("tuning: {lora: {r: 4, dora: true}}\n", {"tuning.lora=null"}).config.tuning.lora.r,
            LoraConfig().r);
  set("SFTRUN_TRAIN__ROLLOUTS", "null");
  EXPECT_FALSE(load(rollouts).config.train.has_rollouts());
}

TEST_F(ConfigTest, UnsupportedKeysWithoutEffectAreAccepted) {
  EXPECT_TRUE(load("parallel: {tp: 1, pp: 1, offload: none, deepspeed: null, device_map: }\n"
                   "tuning: {train_parts: null}\ntrain: {early_stopping: no}\n")
                  .warnings.empty());
}

TEST_F(ConfigTest, EarlyStoppingMayBeAMap) {
  const TrainConfig train =
      load("train: {early_stopping: {patience: 3, threshold: 0.5}}\n", {"data.val_split=0.5"})
          .config.train;
  EXPECT_EQ(train.early_stopping_patience, 3);
  EXPECT_EQ(train.early_stopping_threshold, 0.5);
  EXPECT_EQ(load("", {"train.early_stopping.patience=4", "data.val_split=0.5"})
                .config.train.early_stopping_patience,
            4);
}

TEST_F(ConfigTest, ValuesInPlaceOfSectionsNameTheirKey) {
  for (const auto& [text, fix] :
       {std::pair("model: models/m\n", "write `model: { name: models/m }`"),
        {"data: t.jsonl\n", "write `data: { train: t.jsonl }`"},
        {"train: fast\n", "indent its keys below `train:`"}})
    expect_error<ConfigError>([&] { load_config(write("run.yaml", text), {}); }, {fix});
  expect_error<ConfigError>([&] { load("", {"model=models/m"}); }, {"write model.name=models/m"});
  expect_error<ConfigError>([&] { load("", {"train=fast"}); }, {"set its keys one by one"});
}

/// In braces YAML ends a value at a comma.
TEST_F(ConfigTest, ListsWithoutBracketsInBraces) {
  expect_error<ConfigError>(
      [&] { load("tuning: {lora: {target_modules: q_proj,k_proj, v_proj, r: 4}}\n"); },
      {"unknown key `tuning.lora.k_proj`",
       "write a list in brackets: target_modules: [q_proj, k_proj, v_proj]"});
  EXPECT_EQ(load("train: {epochs: 2, warmup_steps: , batch_size: 3}\n").config.train.epochs, 2);
  expect_error<ConfigError>([&] { load("train:\n  epochs: 2\n  epoch:\n"); },
                            {"unknown key `train.epoch`", "did you mean `train.epochs`?"});
}

TEST_F(ConfigTest, PatternsOfForeignKeysAreNotSuggested) {
  expect_error<ConfigError>([&] { load("", {"train.liger=true"}); },
                            {"unknown key `train.liger`", "fix: not needed: "});
}

/// What a file may write, an override may write.
TEST_F(ConfigTest, OtherSpellingsAreOverridesToo) {
  const std::string split = "data.val_split=0.5";
  const auto expect = [](const LoadedConfig& loaded) {
    EXPECT_EQ(loaded.config.train.early_stopping_patience, 3);
    EXPECT_EQ(loaded.config.train.early_stopping_threshold, 0.5);
    EXPECT_EQ(loaded.overrides.size(), 3U);  // with the split
  };
  expect(load("", {"train.early_stopping={patience: 3, threshold: 0.5}", split}));
  expect(
      load("", {"train.early_stopping.patience=3", "train.early_stopping.threshold=0.5", split}));
  expect(load("train: {early_stopping: {patience: 9, threshold: 9}}\n",
              {"train.early_stopping={patience: 3, threshold: 0.5}", split}));
  const LoadedConfig none = load("", {"parallel.offload=none", "train.early_stopping={}"});
  EXPECT_FALSE(none.config.train.early_stopping_patience);
  set("SFTRUN_TRAIN__EARLY_STOPPING", "{patience: 3, threshold: 0.5}");
  expect(load("", {split}));
  unset("SFTRUN_TRAIN__EARLY_STOPPING");
  try {
    load("", {"train.early_stopping={patients: 3}", split});
    ADD_FAILURE() << "a key that does not exist is accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("train.early_stopping.patients"), std::string::npos);
  }
}

TEST_F(ConfigTest, OffloadedWeightsAreWarnedOfWhereTheyMeanLittle) {
  const auto warnings = [&](const std::string& text) { return load(text).warnings; };
  EXPECT_TRUE(warnings("tuning: {mode: full}\nparallel: {offload: {params: cpu}}\n").empty());
  EXPECT_TRUE(warnings("tuning: {mode: full}\ntrain: {optimizer: lion}\n"
                       "parallel: {offload: {params: cpu, optimizer: cpu}}\n")
                  .empty());
  const auto of_lora = warnings("parallel: {offload: {params: cpu}}\n");
  ASSERT_EQ(of_lora.size(), 1U);
  EXPECT_NE(of_lora[0].find("saves little memory with tuning.mode lora"), std::string::npos);
  const auto of_hook = warnings(
      "tuning: {mode: full}\ntrain: {ddp_comm_hook: bf16}\n"
      "parallel: {strategy: ddp, offload: {params: cpu}}\n");
  ASSERT_EQ(of_hook.size(), 1U);
  EXPECT_NE(of_hook[0].find("no effect with parallel.offload.params"), std::string::npos);
}

TEST_F(ConfigTest, PathsAreRelativeToTheCurrentDirectoryOrTheYaml) {
  write("sub/t.jsonl", "{}");
  write("sub/base/config.json", "{}");
  const auto yaml =
      write("sub/run.yaml", "model: {name: ./base}\ndata: {train: t.jsonl, val: none.jsonl}\n");
  const LoadedConfig loaded = load_config(yaml, {});
  EXPECT_EQ(loaded.config.data.train[0].path, (directory_ / "sub/t.jsonl").string());
  EXPECT_EQ(loaded.config.model.name, (directory_ / "sub/base").string());
  EXPECT_EQ(loaded.config.data.val[0].path, "none.jsonl");
  expect_error<DataError>([&] { require_files(loaded); },
                          {"data.val: no such file: none.jsonl", "run.yaml:2:"});
}

TEST_F(ConfigTest, FoldersOfImagesAreLookedForAsOtherPaths) {
  write("sub/t.jsonl", "{}");
  write("sub/images/a.png", "x");
  const auto yaml = write("sub/run.yaml",
                          "model: {name: m}\n"
                          "data: {train: [t.jsonl, {path: t.jsonl, image_root: images}], "
                          "image_root: images}\n");
  const LoadedConfig loaded = load_config(yaml, {});
  EXPECT_EQ(loaded.config.data.image_root, (directory_ / "sub/images").string());
  EXPECT_EQ(loaded.config.data.train[0].image_root, "");
  EXPECT_EQ(loaded.config.data.train[1].image_root, (directory_ / "sub/images").string());
  require_files(loaded);
  expect_error<DataError>([&] { require_files(load_config(yaml, {"data.image_root=missing"})); },
                          {"data.image_root: no such folder: missing", "command line"});
  const auto of_file = [&] {
    require_files(load_config(yaml, {"data.train=[{path: t.jsonl, image_root: t.jsonl}]"}));
  };
  expect_error<DataError>(of_file, {"data.train: image_root: not a folder: "});
  for (const auto& [setting, advice] :
       {std::pair("data.train=[{path: t.jsonl, media_dir: images}]", "did you mean `image_root`?"),
        std::pair("data.image_dir=images", "use `data.image_root`"),
        std::pair("data.fields={image: picture}", "did you mean `images`?")})
    expect_error<ConfigError>([&] { load_config(yaml, {setting}); }, {advice});
}

TEST_F(ConfigTest, DataSetsAreAPathAMapOrAList) {
  const auto loaded = [&](const std::string& data, const std::vector<std::string>& overrides = {}) {
    return load_config(write("run.yaml", "model: {name: m}\ndata: {" + data + "}\n"), overrides)
        .config.data;
  };
  const auto sources = [&](const std::string& train) { return loaded("train: " + train).train; };
  EXPECT_EQ(sources("a.jsonl"), (std::vector<DataSource>{{.path = "a.jsonl"}}));
  EXPECT_EQ(sources("{path: a.jsonl, weight: 2}"),
            (std::vector<DataSource>{{.path = "a.jsonl", .weight = 2}}));
  EXPECT_EQ(
      sources("[a.jsonl, {path: 'b*.csv', name: no, split: test, format: alpaca, max_samples: 10, "
              "fields: {prompt: q}}]"),
      (std::vector<DataSource>{{.path = "a.jsonl"},
                               {.path = "b*.csv",
                                .name = "no",
                                .split = "test",
                                .format = RecordFormat::kAlpaca,
                                .fields = {{"prompt", "q"}},
                                .max_samples = 10}}));
  EXPECT_EQ(names_of(sources("[a, b, c, d]")), "a, b and 2 more");
  const LoadedConfig overridden = load("", {"data.train=[{path: x.csv, weight: 0.5}, y]"});
  EXPECT_EQ(overridden.config.data.train.size(), 2U);
  EXPECT_TRUE(loaded("train: t, val: v.jsonl", {"data.val="}).val.empty());
}

TEST_F(ConfigTest, PatternsAreLookedUpBesideTheYaml) {
  write("sub/d/1.jsonl", "{}");
  const auto yaml =
      write("sub/run.yaml", "model: {name: .}\ndata: {train: 'd/*.jsonl', val: '*.csv'}\n");
  const LoadedConfig loaded = load_config(yaml, {});
  EXPECT_EQ(loaded.config.data.train[0].path, (directory_ / "sub/d/*.jsonl").string());
  expect_error<DataError>([&] { require_files(loaded); },
                          {"data.val: no file matches: *.csv", "run.yaml:2:"});
}

TEST_F(ConfigTest, AModelMayBeOnAHub) {  // whoever loads it looks for it, and names this place
  write("t.jsonl", "{}");
  const LoadedConfig loaded = load("");
  require_files(loaded);
  EXPECT_EQ(loaded.config.model.name, "m");
  EXPECT_NE(loaded.place_of("model.name").find("run.yaml:1:9"), std::string::npos);
}

TEST_F(ConfigTest, ExpertsAloneMayBeAdapted) {
  const std::string none = "tuning: {lora: {target_modules: []";
  expect_error<ConfigError>([&] { load(none + "}}"); },
                            {"`tuning.lora.target_modules` is empty", "use all-linear"});
  const LoadedConfig loaded = load(none + ", target_parameters: [experts.down_proj]}}");
  EXPECT_TRUE(loaded.config.tuning.lora.target_modules.empty());
}

/// PEFT's `target_modules` is a list of endings of names, or one regular expression.
TEST_F(ConfigTest, TextMayBeAnExpressionOfModules) {
  const auto targets = [&](const std::string& value) {
    return load("tuning: {lora: {target_modules: " + value + "}}\n").config.tuning.lora;
  };
  const std::string expression = R"(model\.layers\.[0-3]\..*_proj)";
  EXPECT_EQ(targets("'" + expression + "'").target_modules.expression, expression);
  EXPECT_TRUE(targets("'" + expression + "'").target_modules.names.empty());
  for (const char* name : {"all-linear", "q_proj", "layers.0.self_attn.q_proj"}) {
    EXPECT_EQ(targets(name).target_modules.names, std::vector<std::string>{name});
    EXPECT_EQ(targets(name).target_modules.expression, "");
  }
  RunConfig config = load("tuning: {lora: {target_modules: '" + expression + "'}}").config;
  EXPECT_EQ(bind(config).find("tuning.lora.target_modules")->get(), expression);
  expect_error<ConfigError>([&] { targets("['.*_proj']"); },
                            {"has `.*_proj` in a list", "without brackets around it"});
  expect_error<ConfigError>([&] { targets("'.*(q_proj'"); },
                            {"is `.*(q_proj`, which is not a regular expression"});
}

TEST_F(ConfigTest, ADirectoryOfATemplateMayBeBesideTheFile) {
  const std::string folder =
      write("own/tokenizer/chat_template.jinja", "{{ messages }}").parent_path();
  const auto chosen = [&](const std::string& name) {
    const std::string text = "model: {name: m, chat_template: " + name + "}\n";
    return load_config(write("run.yaml", text + "data: {train: t.jsonl}\n"), {})
        .config.model.chat_template;
  };
  EXPECT_EQ(chosen("own/tokenizer"), folder);
  std::filesystem::create_directory(std::filesystem::path(folder).parent_path().parent_path() /
                                    "chatml");
  EXPECT_EQ(chosen("chatml"), "chatml") << "the built-in one";
}

TEST_F(ConfigTest, OverridesAloneNeedNoModel) {
  const LoadedConfig loaded =
      config_from_overrides({"tuning.lora.r=8", "tuning.lora.target_modules=[q_proj]"});
  EXPECT_EQ(loaded.config.tuning.lora.r, 8);
  expect_error<ConfigError>([] { config_from_overrides({"tuning.lora.rr=8"}); },
                            {"did you mean `tuning.lora.r`?"});
  expect_error<ConfigError>([] { config_from_overrides({"lr"}); },
                            {"`lr` is not of the form", "train.learning_rate=VALUE"});
  expect_error<ConfigError>([] { config_from_overrides({"tuning.lora=5"}); },
                            {"`tuning.lora` is a section"});
  expect_error<ConfigError>(
      [] {
        config_from_overrides({"data.train=x", "train.seed=[1"});
      },
      {"not valid YAML", "train.seed=[1 from the command line"});
}

/// As bash passes them without quotes.
TEST_F(ConfigTest, OverridesThatTheShellDividedAreOneProblem) {
  const auto problems = [&](const std::vector<std::string>& words) {
    try {
      load("", words);
    } catch (const ConfigProblems& error) {
      std::string text;
      for (const Problem& problem : error.problems)
        text += problem.message + "; " + problem.fix + "\n";
      return text;
    }
    return std::string();
  };
  EXPECT_EQ(problems({"data.fields={prompt:", "question,", "completion:", "answer}"}),
            "the shell split `data.fields={prompt: question, completion: answer}` into 4 words; "
            "write it in single quotes: 'data.fields={prompt: question, completion: answer}'\n");
  EXPECT_EQ(problems({"train.epochs=1", "tuning.lora.target_modules=[q_proj,", "v_proj]"}),
            "the shell split `tuning.lora.target_modules=[q_proj, v_proj]` into 2 words; write it "
            "in single quotes: 'tuning.lora.target_modules=[q_proj, v_proj]'\n");
  EXPECT_EQ(problems({"data.fields={prompt: question, completion: answer}"}), "");
  EXPECT_NE(problems({"train.betas=[0.9,", "train.epochs=1"}).find("not valid YAML"),
            std::string::npos);
}

TEST_F(ConfigTest, ValuesWithoutAnEffectAreWarnedAbout) {
  EXPECT_EQ(load("train: {scheduler: constant, warmup_steps: 5}").warnings.size(), 1u);
  EXPECT_EQ(load("train: {eval_strategy: no, eval_steps: 5}").warnings.size(), 1u);
  EXPECT_EQ(load("train: {eval_strategy: no, eval_token_accuracy: true}").warnings.size(), 1u);
  EXPECT_EQ(load("callbacks: {command: ls, events: []}").warnings.size(), 1u);
}

TEST_F(ConfigTest, SettingsThatTheOptimizerDoesNotReadAreWarnedAbout) {
  const auto warnings = [&](const std::string& train) {
    std::vector<std::string> keys;
    for (const std::string& warning : load("train: {" + train + "}").warnings)
      keys.push_back(warning.substr(0, warning.find(' ')));
    return keys;
  };
  const std::string adam = ", adam_beta1: 0.8, adam_beta2: 0.9, adam_epsilon: 1e-6";
  const std::vector<std::string> none,
      all_of_adam = {"train.adam_beta1", "train.adam_beta2", "train.adam_epsilon"};
  for (const char* optimizer : {"adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"})
    EXPECT_EQ(warnings(fmt::format("optimizer: {}{}", optimizer, adam)), none) << optimizer;
  EXPECT_EQ(warnings("optimizer: muon" + adam), all_of_adam) << "an adapter has matrices only";
  EXPECT_TRUE(load("tuning: {mode: full}\ntrain: {optimizer: muon" + adam + "}").warnings.empty());
  for (const char* optimizer : {"sgd", "adafactor"})
    EXPECT_EQ(warnings(fmt::format("optimizer: {}{}", optimizer, adam)), all_of_adam) << optimizer;
  EXPECT_EQ(warnings("optimizer: lion" + adam), std::vector<std::string>{"train.adam_epsilon"});

  const std::string of_muon = ", momentum: 0.5, nesterov: true, muon_lr: original";
  EXPECT_EQ(warnings("optimizer: muon" + of_muon), none);
  EXPECT_EQ(warnings("optimizer: sgd" + of_muon), std::vector<std::string>{"train.muon_lr"});
  EXPECT_EQ(warnings("optimizer: lion" + of_muon),
            (std::vector<std::string>{"train.momentum", "train.nesterov", "train.muon_lr"}));

  const std::string defaults =
      ", adam_beta1: 0.9, adam_beta2: 0.999, adam_epsilon: 1e-8, muon_lr: match_rms_adamw";
  EXPECT_EQ(warnings("optimizer: sgd" + defaults), none) << "as in config.resolved.yaml";

  const std::string yaml = (directory_ / "run.yaml").string();
  EXPECT_EQ(load("train: {optimizer: lion, momentum: 0.5, muon_lr: original}").warnings,
            (std::vector<std::string>{
                fmt::format("train.momentum has no effect with train.optimizer lion: only sgd and "
                            "muon read it ({}:3:26)",
                            yaml),
                fmt::format("train.muon_lr has no effect with train.optimizer lion: only muon "
                            "reads it ({}:3:41)",
                            yaml)}));
}

/// As where parallel.strategy names them.
TEST_F(ConfigTest, SizesThatAskForTensorParallelismOrAPipelineAreChecked) {
  const auto refused = [&](const std::vector<std::string>& overrides, const std::string& why) {
    test::expect_error<ConfigError>([&] { load("", overrides); }, {why});
  };
  refused({"parallel.tp=2", "tuning.lora.init=pissa"}, "`parallel.tp` divides them");
  refused({"parallel.tp=2", "tuning.backend=bnb"}, "`parallel.tp` divides them");
  refused({"parallel.pp=2", "parallel.fetch=per_step"}, "`parallel.fetch: per_step`");
  refused({"parallel.device_map=auto", "parallel.fetch=per_step"}, "parallel.device_map=auto from");
  refused({"parallel.tp=2", "parallel.offload.base=cpu"}, "not available with `parallel.tp`");
  load("", {"parallel.tp=1", "tuning.lora.init=pissa"});
}

TEST_F(ConfigTest, GarbageIsAnErrorNeverACrash) {
  const std::string alphabet = "abc:{}[]&*!|>'\"%@`#,-? \n\t\\0\x80\xff<<~";
  uint32_t state = 17;
  int errors = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text = "train:\n  epochs: ";
    for (int k = 0; k < 24; ++k) {
      state = state * 1664525u + 1013904223u;
      text += alphabet[(state >> 16) % alphabet.size()];
    }
    try {
      load(text);
    } catch (const ConfigError&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, 300);
}

}  // namespace
}  // namespace sftrun::config
