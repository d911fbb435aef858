#include <fmt/format.h>

#include "foreign/import_test_base.h"
#include "sftrun/config/problem.h"
#include "support/expect_error.h"

namespace sftrun::foreign {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

class TrainersTest : public ImportTest {
 protected:
  /// Imports an example, and requires that the result is a valid run with the same values.
  Import checked(const std::string& name, Tool tool) {
    const Import result = import_config(example(name), std::nullopt);
    EXPECT_EQ(result.tool, tool);
    EXPECT_TRUE(result.missing.empty());
    const LoadedConfig loaded = load_config(write("imported.yaml", to_yaml(result)), {});
    RunConfig config = loaded.config;
    Binding fields = bind(config);
    for (const ImportedSetting& setting : result.settings) {
      const bool is_path = setting.key == "data.train" || setting.key == "model.name";
      EXPECT_TRUE(is_path || fields.find(setting.key)->get() == setting.value) << setting.key;
    }
    return result;
  }
  static void expect_values(const Import& import, const Values& values) {
    for (const auto& [field, value] : values) EXPECT_EQ(value_of(import, field), value) << field;
  }
};

TEST_F(TrainersTest, AxolotlQlora) {
  const Import run = checked("axolotl_qlora.yaml", Tool::kAxolotl);
  expect_values(run, {{"model.name", "\"models/llama\""},
                      {"model.max_seq_len", "4096"},
                      {"tuning.mode", "\"qlora\""},
                      {"tuning.lora.r", "32"},
                      {"tuning.lora.target_modules", "[\"all-linear\"]"},
                      {"data.val_split", "0.05"},
                      {"data.packing", "true"},
                      {"train.epochs", "4.0"},
                      {"train.batch_size", "2"},
                      {"train.grad_accum", "4"},
                      {"train.optimizer", "\"paged_adamw\""},
                      {"train.warmup_steps", "10"},
                      {"train.gradient_checkpointing", "true"},
                      {"output.dir", "\"./outputs/qlora\""}});
  EXPECT_EQ(value_of(run, "tuning.quant"), "none");  // qlora says it
  const std::string sources = value_of(run, "data.train");
  for (const char* part : {R"("messages":"conversations")", R"("role":"from")",
                           R"("gpt":"assistant")", R"("format":"messages")"})
    EXPECT_NE(sources.find(part), std::string::npos) << sources;
  EXPECT_TRUE(has_key(run.not_carried, "evals_per_epoch"));
  EXPECT_TRUE(has_key(run.no_meaning, "flash_attention"));
  EXPECT_FALSE(has_key(run.not_carried, "wandb_project"));  // it is empty
}

TEST_F(TrainersTest, LlamaFactoryNamesModulesWithCommas) {
  const Import run = import_config(
      write(
          "lf.yaml",
          "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_target: q_proj, v_proj\n"
          "additional_target: embed_tokens,lm_head\n"),
      Tool::kLlamaFactory);
  expect_values(run, {{"tuning.lora.target_modules", R"(["q_proj","v_proj"])"},
                      {"tuning.lora.modules_to_save", R"(["embed_tokens","lm_head"])"}});
}

/// transformers has two seeds, and -1 as its default of max_steps.
TEST_F(TrainersTest, SeedsAndStepsOfTransformers) {
  for (const char* seeds : {"seed: 3\ndata_seed: 4\n", "data_seed: 4\nseed: 3\n"}) {
    const Import run = import_config(
        write("trl.yaml", std::string("model_name_or_path: m\ndataset_name: d\nlora_r: 8\n"
                                      "use_peft: true\nmax_steps: -1\n") +
                              seeds),
        Tool::kTrl);
    expect_values(run, {{"train.seed", "3"}, {"data.seed", "4"}, {"train.max_steps", "none"}});
    EXPECT_FALSE(has_key(run.not_carried, "max_steps"));
  }
}

/// The note says what is used in place of a value that does not exist here.
TEST_F(TrainersTest, OtherValuesAreReplacedByANamedOne) {
  const auto why = [&](const Import& run, const std::string& key) {
    for (const ImportNote& note : run.not_carried)
      if (note.key == key) return note.why;
    return std::string("not noted");
  };
  const std::string model = "model_name_or_path: m\ndataset_name: d\nuse_peft: true\n";
  const auto of_trl = [&](const std::string& keys) { return import(model + keys, Tool::kTrl); };
  for (const char* schedule :
       {"rex", "reduce_lr_on_plateau", "warmup_stable_decay", "one_cycle", "piecewise"}) {
    const std::string name = schedule;
    EXPECT_TRUE(why(of_trl("lr_scheduler_type: " + name + "\n"), "lr_scheduler_type")
                    .ends_with("; `train.scheduler: linear` is used instead"))
        << name;
    EXPECT_TRUE(
        why(import("base_model: m\nlr_scheduler: " + name + "\n", Tool::kAxolotl), "lr_scheduler")
            .ends_with("; `train.scheduler: cosine` is used instead"))
        << name;
  }
  const Import run = of_trl(
      "optim: ademamix\nattn_implementation: flex_attention\nsave_strategy: sometimes\n"
      "eval_strategy: often\n");
  for (const auto& [key, used] : Values{{"optim", "train.optimizer: adamw"},
                                        {"attn_implementation", "model.attention: auto"},
                                        {"save_strategy", "train.save_strategy: steps"},
                                        {"eval_strategy", "train.eval_strategy: auto"}})
    EXPECT_TRUE(why(run, key).ends_with("; `" + used + "` is used instead")) << why(run, key);
  const Import tune = import(
      "optimizer: {_component_: bitsandbytes.optim.AdEMAMix, lr: 1e-4}\n"
      "lr_scheduler: {_component_: get_exponential_schedule}\n",
      Tool::kTorchtune);
  EXPECT_TRUE(
      why(tune, "optimizer._component_").ends_with("`train.optimizer: adamw` is used instead"));
  EXPECT_TRUE(why(tune, "lr_scheduler._component_")
                  .ends_with("`train.scheduler: constant` is used instead"));
}

TEST_F(TrainersTest, KeysOfAnotherToolAreNamedAsSuch) {
  const std::string trl = "model_name_or_path: m\ndataset_name: d\nuse_peft: true\n";
  for (const char* key : {"dpo_loss_type: ipo", "rl: kto", "stage: rm", "pref_loss: orpo"})
    test::expect_error<ConfigError>([&] { import(trl + key + "\n", Tool::kTrl); },
                                    {"which TRL does not have", "by `loss_type`", "file:4"});
  test::expect_error<ConfigError>(
      [&] { import("base_model: m\nloss_type: ipo\n", Tool::kAxolotl); },
      {"`loss_type` is a key of TRL, which Axolotl does not have", "by `rl`"});
  test::expect_error<ConfigError>(
      [&] { import("base_model: m\nloss: dpo\n", Tool::kAxolotl); },
      {"`loss` is a key of torchtune, which Axolotl does not have", "by `rl`"});
  const Import run = import(trl + "unfrozen_parameters: [lm_head]\n", Tool::kTrl);
  EXPECT_TRUE(has_key(run.not_carried, "unfrozen_parameters"));
  EXPECT_NO_THROW(import(trl + "dpo_loss_type: null\n", Tool::kTrl));
}

/// transformers' `fsdp` and `fsdp_config`.
TEST_F(TrainersTest, FsdpOfTransformers) {
  const auto of = [&](Tool tool, const std::string& keys) {
    return import(tool == Tool::kTrl
                      ? "model_name_or_path: m\ndataset_name: d\n" + keys
                      : "model_name_or_path: m\nstage: sft\nfinetuning_type: full\n" + keys,
                  tool);
  };
  for (const Tool tool : {Tool::kTrl, Tool::kLlamaFactory}) {
    const Import one = of(tool,
                          "gradient_checkpointing: false\nfsdp: full_shard auto_wrap\n"
                          "fsdp_config: {activation_checkpointing: true, "
                          "transformer_layer_cls_to_wrap: [Layer], "
                          "fsdp_state_dict_type: FULL_STATE_DICT}\n");
    expect_values(one, {{"parallel.strategy", "\"fsdp\""},
                        {"train.gradient_checkpointing", "true"},
                        {"train.checkpoint_format", "\"whole\""}});
    EXPECT_TRUE(has_key(one.no_meaning, "gradient_checkpointing"));
    EXPECT_TRUE(has_key(one.no_meaning, "fsdp_config.transformer_layer_cls_to_wrap"));
    EXPECT_FALSE(has_key(one.not_carried, "fsdp_config"));
    expect_values(of(tool, "fsdp: true\nfsdp_config: {reshard_after_forward: false}\n"),
                  {{"parallel.strategy", "\"zero2\""}});
    expect_values(of(tool, "fsdp: true\nfsdp_config: {version: 2, offload_params: true}\n"),
                  {{"parallel.strategy", "\"fsdp\""},
                   {"parallel.offload.params", "\"cpu\""},
                   {"parallel.offload.optimizer", "\"cpu\""}});
    const Import without =
        of(tool, "gradient_checkpointing: false\nfsdp_config: {activation_checkpointing: true}\n");
    expect_values(without,
                  {{"parallel.strategy", "none"}, {"train.gradient_checkpointing", "false"}});
    EXPECT_TRUE(has_key(without.no_meaning, "fsdp_config"));
    EXPECT_TRUE(
        has_key(of(tool, "fsdp: full_shard\nfsdp_config: fsdp.json\n").not_carried, "fsdp_config"));
  }
}

TEST_F(TrainersTest, AxolotlFull) {
  const Import run = checked("axolotl_full.yaml", Tool::kAxolotl);
  expect_values(run, {{"tuning.mode", "\"full\""},
                      {"data.packing", "false"},
                      {"train.epochs", "1.0"},
                      {"train.seed", "7"},
                      {"data.seed", "7"},
                      {"train.bf16", "true"},
                      {"parallel.strategy", "\"fsdp\""},
                      {"train.optimizer", "none"},
                      {"train.scheduler", "none"}});
  for (const char* key : {"optimizer", "lr_scheduler", "chat_template", "datasets"})
    EXPECT_TRUE(has_key(run.not_carried, key)) << key;
}

TEST_F(TrainersTest, LlamaFactory) {
  const Import run = checked("llama_factory_lora.yaml", Tool::kLlamaFactory);
  expect_values(run, {{"tuning.lora.r", "8"},
                      {"tuning.lora.alpha", "16.0"},
                      {"tuning.lora.target_modules", "[\"q_proj\",\"v_proj\"]"},
                      {"model.chat_template", "\"llama3\""},
                      {"train.scheduler", "\"cosine\""},
                      {"train.warmup_ratio", "0.1"},
                      {"train.eval_batch_size", "1"},
                      {"data.packing", "false"},
                      {"output.report_to", "[]"}});
  EXPECT_EQ(value_of(run, "train.warmup_steps"), "none");
  const std::string sources = value_of(run, "data.train");
  for (const char* part : {"factory/identity.json", "owner/shared", R"("human":"user")"})
    EXPECT_NE(sources.find(part), std::string::npos) << sources;
  const std::string text = "model_name_or_path: m\nfinetuning_type: lora\ndataset: mine\n";
  EXPECT_TRUE(has_key(import(text, Tool::kLlamaFactory).not_carried, "dataset"));
  const Import limited = import(text + "max_samples: 10\n", Tool::kLlamaFactory);
  EXPECT_NE(to_yaml(limited).find("max_samples: write it in each entry of data.train and data.val: "
                                  "[{path: FILE, max_samples: 10}]"),
            std::string::npos)
      << to_yaml(limited);
  write("data/dataset_info.json", "{}");
  test::expect_error<ConfigError>([&] { import(text, Tool::kLlamaFactory); },
                                  {"`dataset` has `mine`", "dataset_info.json", "file:3:10"});
}

/// An import reads neither overrides nor sections of a run.
TEST_F(TrainersTest, FixesNameTheLinesOfTheFile) {
  const auto expect_line = [&](const std::string& text, Tool tool, const char* line) {
    test::expect_error<ConfigError>(
        [&] { import(text, tool); },
        {"quantised weights cannot be trained", fmt::format("that is `{}`", line)});
  };
  expect_line("base_model: m\nload_in_8bit: true\ndatasets: [{path: a}]\n", Tool::kAxolotl,
              "adapter: lora");
  expect_line("model_name_or_path: m\nquantization_bit: 4\nfinetuning_type: full\n",
              Tool::kLlamaFactory, "finetuning_type: lora");
  EXPECT_NO_THROW(import("base_model: m\nload_in_8bit: true\nadapter: lora\n", Tool::kAxolotl));
}

/// Full training has a reference model, too: the model as it starts.
TEST_F(TrainersTest, PairsMayTrainAllParameters) {
  for (const auto& [text, tool] :
       {std::pair{"base_model: m\nrl: dpo\ndatasets: [{path: a}]\n", Tool::kAxolotl},
        std::pair{"model_name_or_path: m\nstage: dpo\nfinetuning_type: full\n",
                  Tool::kLlamaFactory}}) {
    const Import run = import(text, tool);
    EXPECT_EQ(value_of(run, "train.objective"), "\"dpo\"");
    EXPECT_EQ(value_of(run, "tuning.mode"), "\"full\"");
  }
}

TEST_F(TrainersTest, AFileOfAnotherTrainerIsNamed) {
  test::expect_error<ConfigError>(
      [&] {
        import("base_model: m\nadapter: qlora\nload_in_4bit: true\ndatasets: [{path: a}]\n",
               Tool::kTrl);
      },
      {"this looks like a file of Axolotl, not of TRL", "write --from axolotl"});
}

TEST_F(TrainersTest, Torchtune) {
  const Import run = checked("torchtune_lora.yaml", Tool::kTorchtune);
  expect_values(run, {{"tuning.mode", "\"lora\""},
                      {"tuning.lora.r", "64"},
                      {"tuning.lora.target_modules",
                       R"(["q_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"])"},
                      {"model.max_seq_len", "4096"},
                      {"model.dtype", "\"bf16\""},
                      {"train.optimizer", "\"adamw\""},
                      {"train.scheduler", "\"cosine\""},
                      {"train.warmup_steps", "100"},
                      {"train.max_grad_norm", "0.0"},
                      {"train.learning_rate", "0.0003"},
                      {"output.dir", "\"/tmp/torchtune/lora\""}});
  ASSERT_EQ(run.not_carried.size(), 1U);  // Alpaca's prompt text
  EXPECT_EQ(run.not_carried[0].key, "dataset");
}

/// The sizes are of all processes, if none of them is what the others leave.
TEST_F(TrainersTest, TorchtunesSizesNameTheProcesses) {
  const auto sizes = [&](const std::string& more) {
    return import(
        "model: {_component_: torchtune.models.llama3.llama3_8b}\ntensor_parallel_dim: 2\n"
        "tensor_parallel_plan: {_component_: torchtune.models.llama3.base_llama_tp_plan}\n"
        "data_parallel_replicate_dim: 2\n" +
            more,
        Tool::kTorchtune);
  };
  const Import all = sizes("data_parallel_shard_dim: 2\n"),
               rest = sizes("data_parallel_shard_dim: -1\n");
  expect_values(all,
                {{"parallel.tp", "2"}, {"parallel.dp_replicate", "2"}, {"parallel.dp_shard", "2"}});
  EXPECT_EQ(all.launch.processes, 8);
  EXPECT_EQ(rest.launch.processes, std::nullopt);
  EXPECT_EQ(sizes("").launch.processes, std::nullopt);
  EXPECT_TRUE(all.not_carried.empty());
}

TEST_F(TrainersTest, TorchtuneNamesQloraByItsModelOrAKey) {
  for (const char* model :
       {"{_component_: torchtune.models.llama3.qlora_llama3_8b}",
        "{_component_: torchtune.models.llama3.lora_llama3_8b, quantize_base: true}"})
    EXPECT_EQ(
        value_of(import(std::string("model: ") + model + "\n", Tool::kTorchtune), "tuning.mode"),
        "\"qlora\"")
        << model;
  const Import full =
      import("model: {_component_: torchtune.models.llama3.llama3_8b}\n", Tool::kTorchtune);
  EXPECT_EQ(value_of(full, "tuning.mode"), "\"full\"");
}

TEST_F(TrainersTest, TorchtuneValuesNameOtherValues) {
  const Import run = import(
      "base: /runs\noutput_dir: ${base}/first\nmetric_logger: {log_dir: '${output_dir}/logs'}\n"
      "checkpointer: {checkpoint_dir: '${no_such_key}/${base}'}\n",
      Tool::kTorchtune);
  EXPECT_EQ(value_of(run, "output.dir"), "\"/runs/first\"");
  EXPECT_EQ(value_of(run, "model.name"), "\"${no_such_key}//runs\"");
  const Import endless = import("output_dir: 'x${output_dir}'\n", Tool::kTorchtune);
  EXPECT_LT(value_of(endless, "output.dir").size(), 100U);
}

constexpr const char* kAxolotlLora = "base_model: m\nadapter: lora\n";

/// Without `roles` Axolotl knows human and gpt; both spellings of the columns mean the same.
TEST_F(TrainersTest, ShareGptOfAxolotl) {
  const auto fields = [&](const std::string& more) {
    const Import run = import(std::string(kAxolotlLora) +
                                  "datasets: [{path: a, type: chat_template, field_messages: "
                                  "conversations, " +
                                  more + "}]\n",
                              Tool::kAxolotl);
    return value_of(run, "data.train");
  };
  const std::string expected =
      R"([{"path":"a","format":"messages","fields":{"messages":"conversations","role":"from",)"
      R"("content":"value","roles":{"human":"user","gpt":"assistant"}}}])";
  EXPECT_EQ(fields("message_property_mappings: {role: from, content: value}"), expected);
  EXPECT_EQ(fields("message_field_role: from, message_field_content: value"), expected);
  EXPECT_NE(fields("message_field_training: use").find(R"("train":"use")"), std::string::npos);
  EXPECT_NE(fields("roles: {assistant: bot, user: [me]}")
                .find(R"("roles":{"bot":"assistant","me":"user"})"),
            std::string::npos);
}

TEST_F(TrainersTest, LabelsOfAxolotlThatAreOthersAreNoted) {
  const auto lost = [&](const std::string& key) {
    const Import run = import(
        std::string(kAxolotlLora) + "datasets: [{path: a, type: chat_template, " + key + "}]\n",
        Tool::kAxolotl);
    return has_key(run.not_carried, "datasets");
  };
  for (const char* same :
       {"roles_to_train: [assistant]", "roles_to_train: [gpt]", "train_on_eos: turn",
        "train_on_eot: turn", "message_field_training: use", "message_field_training:"})
    EXPECT_FALSE(lost(same)) << same;
  for (const char* other : {"roles_to_train: [assistant, user]", "roles_to_train: []",
                            "train_on_eos: all", "train_on_eos: none", "train_on_eot: last",
                            "message_field_training_detail: detail", "drop_system_message: true"})
    EXPECT_TRUE(lost(other)) << other;
}

TEST_F(TrainersTest, PairsOfAxolotl) {
  const Import run = import(
      std::string(kAxolotlLora) +
          "rl: dpo\ndatasets: [{path: a, type: chat_template.default, field_messages: turns, "
          "field_chosen: yes_turn}]\n",
      Tool::kAxolotl);
  expect_values(run, {{"train.objective", "\"dpo\""},
                      {"data.train", R"([{"path":"a","format":"preference","fields":)"
                                     R"({"prompt":"turns","chosen":"yes_turn"}}])"}});
  EXPECT_TRUE(run.not_carried.empty());
}

TEST_F(TrainersTest, BothKeysOfTargetsOfAxolotl) {
  const auto targets = [&](const std::string& more) {
    return value_of(import(kAxolotlLora + more, Tool::kAxolotl), "tuning.lora.target_modules");
  };
  EXPECT_EQ(targets("lora_target_linear: true\nlora_target_modules: [q_proj, embed_tokens]\n"),
            R"(["all-linear","embed_tokens"])");
  EXPECT_EQ(targets("lora_target_modules: [q_proj]\nlora_target_linear: false\n"), R"(["q_proj"])");
}

TEST_F(TrainersTest, OtherAdaptersAreRefused) {
  for (const auto& [text, tool] : std::vector<std::pair<std::string, Tool>>{
           {"base_model: m\nadapter: llama-adapter\n", Tool::kAxolotl},
           {"model_name_or_path: m\nfinetuning_type: oft\n", Tool::kLlamaFactory}})
    test::expect_error<ConfigError>([&, &text = text, tool = tool] { import(text, tool); },
                                    {"not supported", "tuning.mode"});
}

TEST_F(TrainersTest, SplitsOfFilesAndSlices) {
  const auto source = [&](const std::string& path, const std::string& split) {
    const Import run = import(kAxolotlLora + ("datasets: [{path: " + path + ", type: completion, " +
                                              "split: '" + split + "'}]\n"),
                              Tool::kAxolotl);
    return value_of(run, "data.train") + (has_key(run.not_carried, "datasets") ? " lost" : "");
  };
  EXPECT_EQ(source("o/n", "validation"),
            R"([{"path":"o/n","split":"validation","format":"text"}])");
  EXPECT_EQ(source("a.jsonl.gz", "train"), R"([{"path":"a.jsonl.gz","format":"text"}])");
  EXPECT_EQ(source("a.jsonl", "test"), R"([{"path":"a.jsonl","format":"text"}] lost)");
  EXPECT_EQ(source("a.json", "train[:5]"),
            R"([{"path":"a.json","format":"text","max_samples":5}])");
  EXPECT_EQ(source("o/n", "train[10%:]"),
            R"([{"path":"o/n","split":"train","format":"text"}] lost)");
}

TEST_F(TrainersTest, MixturesOfTrl) {
  const Import run = import(
      "model_name_or_path: m\ndataset_mixer: {owner/a: 1.0, owner/b: 0.5}\n"
      "dataset_splits: [train_sft, test_sft]\n",
      Tool::kTrl);
  expect_values(run, {{"data.train", R"([{"path":"owner/a","split":"train_sft"},)"
                                     R"({"path":"owner/b","split":"train_sft","weight":0.5}])"}});
}

TEST_F(TrainersTest, OtherObjectivesAreRefused) {
  for (const auto& [text, tool] : std::vector<std::pair<std::string, Tool>>{
           {std::string(kAxolotlLora) + "rl: grpo\n", Tool::kAxolotl},
           {"model_name_or_path: m\nstage: ppo\n", Tool::kLlamaFactory},
           {"model_name_or_path: m\nloss_type: dft\n", Tool::kTrl},
           {"model_name_or_path: m\nloss_type: [dft]\n", Tool::kTrl},
           {"model_name_or_path: m\nloss_type: [sigmoid, dapo]\n", Tool::kTrl},
           {"loss: {_component_: torchtune.rlhf.loss.PPOLoss}\n", Tool::kTorchtune}})
    test::expect_error<ConfigError>([&, &text = text, tool = tool] { import(text, tool); },
                                    {"not supported", "train.objective"});
}

/// transformers 5: below 1 it is a share. A number of steps wins over a share.
TEST_F(TrainersTest, WarmupStepsOrAShare) {
  const std::vector<std::pair<std::string, Tool>> heads = {
      {"base_model: m\n", Tool::kAxolotl},
      {"model_name_or_path: m\n", Tool::kLlamaFactory},
      {"model_name_or_path: m\n", Tool::kTrl}};
  for (const auto& [head, tool] : heads) {
    const auto expect = [&, &head = head, tool = tool](const char* text, const char* steps,
                                                       const char* ratio) {
      const Import run = import(head + text, tool);
      EXPECT_EQ(value_of(run, "train.warmup_steps"), steps) << text;
      EXPECT_EQ(value_of(run, "train.warmup_ratio"), ratio) << text;
    };
    expect("warmup_steps: 0.03\n", "none", "0.03");
    expect("warmup_steps: 20\n", "20", "none");
    expect("warmup_ratio: 0.1\n", "none", "0.1");
    expect("warmup_steps: 20\nwarmup_ratio: 0.1\n", "20", "none");
    expect("warmup_ratio: 0.1\nwarmup_steps: 0\n", "none", "0.1");
    expect("warmup_steps: 0\nwarmup_ratio: 0\n", "none", "0.0");
    expect("warmup_steps: 0\nwarmup_ratio:\n", "0", "none");
  }
}

TEST_F(TrainersTest, TrackersAreListed) {
  const auto reports_to = [&](const std::string& names) {
    return value_of(
        import("model_name_or_path: m\nreport_to: " + names + "\n", Tool::kLlamaFactory),
        "output.report_to");
  };
  EXPECT_EQ(reports_to("wandb"), R"(["wandb"])");
  EXPECT_EQ(reports_to("[wandb, tensorboard]"), R"(["wandb","tensorboard"])");
  EXPECT_EQ(reports_to("[comet_ml, mlflow]"), R"(["mlflow"])");
  EXPECT_EQ(reports_to("all"), R"(["tensorboard","mlflow","wandb","trackio"])");
  EXPECT_EQ(reports_to("none"), "[]");
  const auto logger = [&](const std::string& rest) {
    return import("metric_logger: {_component_: a." + rest + "}\n", Tool::kTorchtune);
  };
  EXPECT_EQ(value_of(logger("DiskLogger, log_dir: x"), "output.report_to"), "[]");
  const Import wandb = logger("WandBLogger, project: mine");
  EXPECT_EQ(value_of(wandb, "output.report_to"), R"(["wandb"])");
  EXPECT_EQ(value_of(wandb, "output.tracking.project"), "\"mine\"");
  EXPECT_TRUE(has_key(logger("CometLogger").not_carried, "metric_logger._component_"));
}

TEST_F(TrainersTest, NamesOfTrackedRuns) {
  const std::string text = "model_name_or_path: m\nrun_name: first\nreport_to: ";
  EXPECT_EQ(value_of(import(text + "trackio\n", Tool::kTrl), "output.tracking.name"), "\"first\"");
  EXPECT_EQ(value_of(import(text + "none\n", Tool::kTrl), "output.tracking.name"), "none");
  const Import run = import(
      "base_model: m\nmicro_batch_size: 1\nwandb_project: mine\nwandb_name: first\nwandb_mode: "
      "offline\n"
      "mlflow_tracking_uri: http://localhost:5000\nmlflow_experiment_name: other\n",
      Tool::kAxolotl);
  EXPECT_EQ(value_of(run, "output.report_to"), R"(["mlflow","wandb"])");
  EXPECT_EQ(value_of(run, "output.tracking.project"), "\"mine\"");
  EXPECT_EQ(value_of(run, "output.tracking.name"), "\"first\"");
  EXPECT_EQ(value_of(run, "output.tracking.uri"), "\"http://localhost:5000\"");
  EXPECT_TRUE(has_key(run.not_carried, "mlflow_experiment_name"));
  EXPECT_TRUE(has_key(run.not_carried, "wandb_mode"));
}

TEST_F(TrainersTest, SaveStrategies) {
  const auto run = [&](const std::string& word) {
    return import("model_name_or_path: m\nsave_steps: 7\nsave_strategy: " + word + "\n",
                  Tool::kLlamaFactory);
  };
  EXPECT_EQ(value_of(run("'no'"), "train.save_every"), "\"0\"");
  EXPECT_EQ(value_of(run("best"), "train.load_best_model_at_end"), "true");
  EXPECT_EQ(value_of(run("epoch"), "train.save_strategy"), "\"epoch\"");
  EXPECT_EQ(value_of(run("epoch"), "train.save_every"), "\"0\"");
  EXPECT_EQ(value_of(run("steps"), "train.save_strategy"), "\"steps\"");
  EXPECT_EQ(value_of(run("steps"), "train.save_every"), "\"0\"");
  EXPECT_EQ(value_of(run("steps"), "train.save_steps"), "7");
  for (const char* word : {"'no'", "epoch", "best"})
    EXPECT_EQ(value_of(run(word), "train.save_steps"), "none") << "as in transformers";
}

TEST_F(TrainersTest, TrlHasDefaultsOfItsOwn) {
  const std::string head = "model_name_or_path: m\ndataset_name: owner/name\n";
  const Import sft = import_config(write("a.yaml", head + "use_peft: true\n"), std::nullopt);
  EXPECT_EQ(sft.tool, Tool::kTrl);
  expect_values(sft, {{"train.objective", "\"sft\""},
                      {"train.learning_rate", "2e-05"},
                      {"train.batch_size", "8"},
                      {"data.loss_on", "\"all\""},
                      {"tuning.mode", "\"lora\""},
                      {"tuning.lora.target_modules", R"(["q_proj","v_proj"])"},
                      {"tuning.lora.dropout", "0.05"},
                      {"tuning.lora.r", "none"}});
  const Import dpo =
      import_config(write("a.yaml", head + "use_peft: true\nbeta: 0.2\n"), std::nullopt);
  expect_values(dpo, {{"train.objective", "\"dpo\""},
                      {"train.learning_rate", "1e-06"},
                      {"train.beta", "0.2"},
                      {"data.loss_on", "none"},
                      {"tuning.lora.dropout", "none"}});
  expect_values(import(head + "assistant_only_loss: true\n", Tool::kTrl),
                {{"data.loss_on", "\"assistant\""}, {"tuning.mode", "\"full\""}});
  expect_values(import(head + "completion_only_loss: true\n", Tool::kTrl),
                {{"data.loss_on", "\"completion\""}});
  const Import evaluated =
      import(head + "dataset_config: en\neval_strategy: steps\nlogging_steps: 5\n", Tool::kTrl);
  expect_values(evaluated, {{"data.train", R"([{"path":"owner/name","name":"en"}])"},
                            {"data.val", R"([{"path":"owner/name","name":"en","split":"test"}])"},
                            {"train.eval_steps", "5"}});
}

TEST_F(TrainersTest, AFileIsRecognisedByItsKeys) {
  test::expect_error<ConfigError>(
      [&] { import_config(write("a.yaml", "unheard: of\n"), std::nullopt); },
      {"not recognised", "--from accelerate|deepspeed|axolotl|llama-factory|trl|torchtune"});
  test::expect_error<ConfigError>(
      [&] { import_config(write("a.yaml", "tuning: {mode: lora}\n"), std::nullopt); },
      {"a configuration of sftrun already"});
}

TEST_F(TrainersTest, AnImportThatWouldNotBeValidIsAnError) {
  test::expect_error<ConfigError>(
      [&] {
        import(
            "base_model: m\ndatasets: [{path: a}]\nadapter: lora\nval_set_size: 0.1\n"
            "test_datasets: [{path: b}]\n",
            Tool::kAxolotl);
      },
      {"`data.val` and `data.val_split` are both set", "file:4:1", "file:5:1"});
}

/// Axolotl's own rule: validation data, and a checkpoint only where an evaluation is.
TEST_F(TrainersTest, BestCheckpointOfAxolotl) {
  struct Case {
    const char *text, *best;
  };
  for (const auto& [text, best] :
       {Case{"val_set_size: 0.1\nsave_steps: 20\neval_steps: 10\n", "true"},
        Case{"val_set_size: 0.1\nmax_steps: 8\nsave_steps: 0.5\neval_steps: 0.25\n", "true"},
        Case{"val_set_size: 0.1\nsaves_per_epoch: 1\nevals_per_epoch: 1\nnum_epochs: 3\n", "true"},
        Case{"test_datasets: [{path: b}]\nsaves_per_epoch: 4\nevals_per_epoch: 4\n", "true"},
        Case{"val_set_size: 0.1\nsave_steps: 15\neval_steps: 10\n", "none"},
        Case{"val_set_size: 0.1\nsave_steps: 10\n", "none"},
        Case{"save_steps: 10\neval_steps: 10\n", "none"},
        Case{"val_set_size: 0.1\nsave_steps: 10\neval_steps: 10\n"
             "load_best_model_at_end: false\n",
             "false"}}) {
    SCOPED_TRACE(text);
    const Import run =
        import(std::string(kAxolotlLora) + "datasets: [{path: a}]\n" + text, Tool::kAxolotl);
    EXPECT_EQ(value_of(run, "train.load_best_model_at_end"), best);
    EXPECT_EQ(value_of(run, "train.save_total_limit"), "4");
    EXPECT_EQ(to_yaml(run).find("load_best_model_at_end: true") != std::string::npos,
              std::string(best) == "true");
  }
  const Import pairs = import(std::string(kAxolotlLora) +
                                  "rl: dpo\ndatasets: [{path: a}]\nval_set_size: 0.1\n"
                                  "save_steps: 10\neval_steps: 10\nsave_total_limit: 2\n",
                              Tool::kAxolotl);
  EXPECT_EQ(value_of(pairs, "train.load_best_model_at_end"), "none");
  EXPECT_EQ(value_of(pairs, "train.save_total_limit"), "2");
  const Import same = import(std::string(kAxolotlLora) +
                                 "datasets: [{path: a, split: 'train[10%:]'}]\n"
                                 "test_datasets: [{path: a, split: 'train[:10%]'}]\n"
                                 "save_steps: 10\neval_steps: 10\n",
                             Tool::kAxolotl);
  EXPECT_EQ(value_of(same, "data.val"), "none");
  EXPECT_EQ(value_of(same, "train.load_best_model_at_end"), "none");
}

/// What the notes say of checkpoints is what the YAML says.
TEST_F(TrainersTest, StepsOfAxolotlAreUsedBeforeNumbersPerEpoch) {
  const Import run = import(std::string(kAxolotlLora) +
                                "datasets: [{path: a}]\nval_set_size: 0.1\nsave_steps: 20\n"
                                "saves_per_epoch: 2\neval_steps: 10\nevals_per_epoch: 4\n",
                            Tool::kAxolotl);
  expect_values(run, {{"train.save_steps", "20"}, {"train.save_every", "\"0\""}});
  for (const char* key : {"saves_per_epoch", "evals_per_epoch"}) {
    EXPECT_TRUE(has_key(run.no_meaning, key)) << key;
    EXPECT_FALSE(has_key(run.not_carried, key)) << key;
  }
}

/// What says that a file of TRL is for DPO stands beside the objective.
TEST_F(TrainersTest, ObjectiveOfTrlNamesItsKey) {
  const std::string head = "model_name_or_path: m\ndataset_name: d\nuse_peft: true\nlora_r: 8\n";
  const auto from_of = [&](const std::string& text) {
    const Import run = import(head + text, Tool::kTrl);
    for (const ImportedSetting& setting : run.settings)
      if (setting.key == "train.objective") return setting.from;
    return std::string("nothing");
  };
  EXPECT_EQ(from_of("loss_type: sigmoid\nbeta: 0.2\n"), "loss_type");
  EXPECT_EQ(from_of("beta: 0.2\n"), "beta");
  EXPECT_EQ(from_of("max_prompt_length: 64\n"), "max_prompt_length");
  EXPECT_EQ(from_of(""), "");  // a default
  const Import run = import(head + "max_prompt_length: 64\n", Tool::kTrl);
  EXPECT_NE(to_yaml(run).find("`model.max_seq_len` is that of prompt and answer together"),
            std::string::npos);
}

/// A default of the tool beside a value of the DeepSpeed file would contradict it.
TEST_F(TrainersTest, DefaultsGiveWayToTheNamedDeepSpeedFile) {
  write("ds.json",
        R"({"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "scheduler": {"type": "WarmupDecayLR",
                          "params": {"warmup_num_steps": 5, "total_num_steps": 20}},
            "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": "auto"})");
  const char* const kKeys[] = {"train.warmup_steps", "train.scheduler", "train.batch_size",
                               "train.learning_rate"};
  for (const auto& [text, tool] :
       {std::pair("model_name_or_path: m\nstage: sft\nfinetuning_type: lora\n",
                  Tool::kLlamaFactory),
        {"model_name_or_path: m\ndataset_name: d\n", Tool::kTrl}}) {
    const Import with = import(std::string(text) + "deepspeed: ds.json\n", tool);
    const Import without = import(text, tool);
    for (const char* key : kKeys) {
      EXPECT_EQ(value_of(with, key), "none") << key;
      EXPECT_NE(value_of(without, key), "none") << key;
    }
    EXPECT_EQ(value_of(with, "train.grad_accum"), "1");  // auto takes the run's
  }
}

constexpr const char* kOffloadOfAxolotl = "base_model: m\ndatasets: [{path: a}]\nadapter: lora\n";

TEST_F(TrainersTest, AxolotlFsdp2NeedsOnlyItsSection) {
  const auto strategy = [&](const std::string& text) {
    return value_of(import(kOffloadOfAxolotl + text, Tool::kAxolotl), "parallel.strategy");
  };
  EXPECT_EQ(strategy("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n"), "\"fsdp\"");
  EXPECT_EQ(strategy("fsdp_version: 2\nfsdp_config: {reshard_after_forward: false}\n"),
            "\"zero2\"");
  EXPECT_EQ(strategy("fsdp_version: 2\nfsdp_config: {offload_params: false}\n"), "\"fsdp\"");
  EXPECT_EQ(strategy("fsdp: [shard_grad_op]\nfsdp_config: {fsdp_offload_params: false}\n"),
            "\"zero2\"");
  EXPECT_EQ(strategy("fsdp_config:\n"), "none");
}

TEST_F(TrainersTest, OffloadOfAxolotl) {
  for (const char* text :
       {"fsdp: [full_shard]\nfsdp_config: {fsdp_offload_params: true}\n",
        "fsdp_config: {offload_params: true}\n", "fsdp: [full_shard, auto_wrap, offload]\n"}) {
    const Import run = import(std::string(kOffloadOfAxolotl) + text, Tool::kAxolotl);
    expect_values(run, {{"parallel.strategy", "\"fsdp\""},
                        {"parallel.offload.base", "\"cpu\""},
                        {"parallel.offload.params", "none"},
                        {"parallel.offload.optimizer", "\"cpu\""}});
    EXPECT_TRUE(run.not_carried.empty()) << text;  // LoRA's weights are few
  }
  for (const char* text : {"activation_offloading: true\n", "gradient_checkpointing: offload\n",
                           "gradient_checkpointing: true\nactivation_offloading: legacy\n"})
    expect_values(
        import(std::string(kOffloadOfAxolotl) + text, Tool::kAxolotl),
        {{"parallel.offload.activations", "\"cpu\""}, {"train.gradient_checkpointing", "true"}});
  const Import disk =
      import(std::string(kOffloadOfAxolotl) + "activation_offloading: disk\n", Tool::kAxolotl);
  EXPECT_TRUE(has_key(disk.not_carried, "activation_offloading"));
}

TEST_F(TrainersTest, DeviceMapOfAxolotl) {
  const Import run = import(std::string(kOffloadOfAxolotl) + "device_map: auto\n", Tool::kAxolotl);
  expect_values(run, {{"parallel.device_map", "\"auto\""}});
  EXPECT_TRUE(run.not_carried.empty());
}

TEST_F(TrainersTest, TrainedParametersMoveToTheHost) {
  const Import full =
      import("base_model: m\ndatasets: [{path: a}]\nfsdp_config: {offload_params: true}\n",
             Tool::kAxolotl);
  EXPECT_TRUE(full.not_carried.empty());
  expect_values(full, {{"parallel.offload.base", "none"},
                       {"parallel.offload.params", "\"cpu\""},
                       {"parallel.offload.optimizer", "\"cpu\""}});
  const Import tune =
      import("model: {_component_: torchtune.models.llama3.llama3_8b}\nfsdp_cpu_offload: True\n",
             Tool::kTorchtune);
  EXPECT_FALSE(has_key(tune.not_carried, "fsdp_cpu_offload"));
  EXPECT_EQ(value_of(tune, "parallel.offload.base"), "none");
  EXPECT_EQ(value_of(tune, "parallel.offload.params"), "\"cpu\"");
}

TEST_F(TrainersTest, OffloadOfTorchtune) {
  const Import run = import(
      "model: {_component_: torchtune.models.llama3.lora_llama3_8b}\nfsdp_cpu_offload: True\n"
      "enable_activation_checkpointing: True\nenable_activation_offloading: True\n",
      Tool::kTorchtune);
  expect_values(run, {{"parallel.offload.base", "\"cpu\""},
                      {"parallel.offload.optimizer", "\"cpu\""},
                      {"parallel.offload.activations", "\"cpu\""},
                      {"train.gradient_checkpointing", "true"}});
  EXPECT_TRUE(run.not_carried.empty());
}

TEST_F(TrainersTest, TorchtunesAlpacaTrainsOnTheInput) {
  const auto loss_on = [&](const std::string& dataset) {
    return value_of(import("dataset: {" + dataset + "}\n", Tool::kTorchtune), "data.loss_on");
  };
  const std::string alpaca = "_component_: torchtune.datasets.alpaca_dataset";
  EXPECT_EQ(loss_on(alpaca), "\"all\"");
  EXPECT_EQ(loss_on("_component_: torchtune.datasets.alpaca_cleaned_dataset"), "\"all\"");
  EXPECT_EQ(loss_on(alpaca + ", train_on_input: False"), "\"assistant\"");
  EXPECT_EQ(loss_on(alpaca + ", train_on_input: True"), "\"all\"");
  EXPECT_EQ(loss_on("_component_: torchtune.datasets.instruct_dataset, source: a"), "none");
}

TEST_F(TrainersTest, TorchtunesLimitsThatAreOff) {
  const Import run = import(
      "tokenizer: {max_seq_len: null}\ntensor_parallel_dim: 1\n"
      "data_parallel_shard_dim: -1\n",
      Tool::kTorchtune);
  EXPECT_TRUE(has_key(run.not_carried, "tokenizer.max_seq_len"));
  EXPECT_EQ(run.not_carried.size(), 1U);
  const Import axes =
      import("tensor_parallel_dim: 2\ndata_parallel_shard_dim: 4\ndata_parallel_replicate_dim: 2\n",
             Tool::kTorchtune);
  EXPECT_EQ(value_of(axes, "parallel.tp"), "2");
  EXPECT_EQ(value_of(axes, "parallel.dp_shard"), "4");
  EXPECT_EQ(value_of(axes, "parallel.dp_replicate"), "2");
}

constexpr const char* kFactory = "model_name_or_path: m\nfinetuning_type: ";

TEST_F(TrainersTest, FsdpOfLlamaFactory) {
  const Import run = import(std::string(kFactory) + "lora\nfsdp: full_shard auto_wrap offload\n",
                            Tool::kLlamaFactory);
  expect_values(run, {{"parallel.strategy", "\"fsdp\""},
                      {"parallel.offload.base", "\"cpu\""},
                      {"parallel.offload.optimizer", "\"cpu\""}});
  EXPECT_EQ(value_of(import(std::string(kFactory) + "lora\nfsdp: ''\n", Tool::kLlamaFactory),
                     "parallel.strategy"),
            "none");
}

TEST_F(TrainersTest, WhatLlamaFactoryAlreadySaysIsNotAdvised) {
  const Import run = import(std::string(kFactory) +
                                "lora\nstage: dpo\npref_loss: sigmoid\nquantization_bit: 4\n"
                                "quantization_method: bnb\npacking: true\nneat_packing: true\n",
                            Tool::kLlamaFactory);
  EXPECT_TRUE(run.not_carried.empty());
  EXPECT_EQ(
      value_of(import(std::string(kFactory) + "lora\nneat_packing: true\n", Tool::kLlamaFactory),
               "data.packing"),
      "true");
  const Import other = import(
      std::string(kFactory) + "lora\nstage: sft\npref_loss: orpo\nquantization_method: hqq\n",
      Tool::kLlamaFactory);
  EXPECT_TRUE(has_key(other.no_meaning, "pref_loss")) << "it is of stage dpo";
  EXPECT_TRUE(has_key(other.not_carried, "quantization_method"));
}

TEST_F(TrainersTest, FullTrainingHasNoSettingsOfLora) {
  const Import run =
      import(std::string(kFactory) + "full\nlora_rank: 16\nloraplus_lr_ratio: 16.0\n",
             Tool::kLlamaFactory);
  for (const char* field : {"tuning.lora.r", "tuning.lora.alpha", "train.loraplus_lr_ratio"})
    EXPECT_EQ(value_of(run, field), "none") << field;
  EXPECT_TRUE(has_key(run.no_meaning, "lora_rank"));
  EXPECT_TRUE(has_key(run.no_meaning, "loraplus_lr_ratio"));
}

TEST_F(TrainersTest, AFileThatIsNamedAndMissingIsStillNeeded) {
  const std::string text = std::string(kFactory) + "lora\ndeepspeed: ds.json\n";
  const auto missing = import(text, Tool::kLlamaFactory).missing;
  ASSERT_EQ(missing.size(), 2U);
  EXPECT_EQ(missing[1], "the file ds.json of parallel.deepspeed");
  write("ds.json", "{}");
  EXPECT_EQ(import(text, Tool::kLlamaFactory).missing.size(), 1U);
}

/// TRL's losses may be in a list.
TEST_F(TrainersTest, AListOfOneLossIsTheLoss) {
  const std::string head = "model_name_or_path: m\nuse_peft: true\nloss_type: ";
  for (const char* loss : {"sigmoid", "[sigmoid]", "[Sigmoid]"})
    EXPECT_EQ(value_of(import(head + loss + "\n", Tool::kTrl), "train.objective"), "\"dpo\"")
        << loss;
  const Import sft = import(head + "[nll]\n", Tool::kTrl);
  EXPECT_EQ(value_of(sft, "train.objective"), "\"sft\"");
  EXPECT_TRUE(has_key(sft.no_meaning, "loss_type"));
}

/// One shuffle before training does not order the steps, which a sampler draws at random.
TEST_F(TrainersTest, AShuffleOfTheDataIsNotTheOrderOfTheSteps) {
  for (const char* truth : {"true", "false"}) {
    const Import merged =
        import(std::string(kOffloadOfAxolotl) + "shuffle_merged_datasets: " + truth + "\n",
               Tool::kAxolotl);
    EXPECT_EQ(value_of(merged, "data.shuffle"), "none");
    EXPECT_TRUE(has_key(merged.no_meaning, "shuffle_merged_datasets"));
    const Import trl =
        import(std::string("model_name_or_path: m\nshuffle_dataset: ") + truth + "\n", Tool::kTrl);
    EXPECT_EQ(value_of(trl, "data.shuffle"), "none");
    EXPECT_TRUE(has_key(trl.no_meaning, "shuffle_dataset"));
  }
  const auto curriculum = [&](const std::string& truth) {
    return value_of(
        import(kOffloadOfAxolotl + ("curriculum_sampling: " + truth + "\n"), Tool::kAxolotl),
        "data.shuffle");
  };
  EXPECT_EQ(curriculum("true"), "false");
  EXPECT_EQ(curriculum("false"), "none");
}

TEST_F(TrainersTest, CheckpointsOfFsdpOfAxolotl) {
  const auto with = [&](const std::string& text) {
    return import(kOffloadOfAxolotl + text, Tool::kAxolotl);
  };
  for (const char* prefix : {"fsdp_", ""}) {
    const Import run = with(fmt::format(
        "gradient_checkpointing: false\nfsdp_config: {{{0}activation_checkpointing: true, "
        "{0}state_dict_type: FULL_STATE_DICT}}\n",
        prefix));
    expect_values(
        run, {{"train.gradient_checkpointing", "true"}, {"train.checkpoint_format", "\"whole\""}});
    EXPECT_TRUE(has_key(run.no_meaning, "gradient_checkpointing"));
    EXPECT_FALSE(
        has_key(run.no_meaning, fmt::format("fsdp_config.{}activation_checkpointing", prefix)));
  }
  expect_values(with("gradient_checkpointing: true\nfsdp_config: {activation_checkpointing: false, "
                     "state_dict_type: SHARDED_STATE_DICT}\n"),
                {{"train.gradient_checkpointing", "true"}, {"train.checkpoint_format", "none"}});
}

TEST_F(TrainersTest, TemplatesOfTrl) {
  const auto with = [&](const std::string& path) {
    return import("model_name_or_path: m\nchat_template_path: " + path + "\n", Tool::kTrl);
  };
  const Import hub = with("owner/model");
  EXPECT_EQ(value_of(hub, "model.chat_template"), "none");
  ASSERT_TRUE(has_key(hub.not_carried, "chat_template_path"));
  EXPECT_NE(to_yaml(hub).find("sftrun download owner/model"), std::string::npos) << to_yaml(hub);
  for (const char* path : {"templates/a.jinja", "./templates/a", "/templates/a", "a/b/c", "a"})
    EXPECT_EQ(value_of(with(path), "model.chat_template"), fmt::format("\"{}\"", path));
  const std::string folder =
      write("own/tokenizer/chat_template.jinja", "{{ messages }}").parent_path();
  EXPECT_EQ(value_of(with(folder), "model.chat_template"), fmt::format("\"{}\"", folder));
  EXPECT_EQ(value_of(with("own/tokenizer"), "model.chat_template"), "\"own/tokenizer\"")
      << "beside the file";
}

TEST_F(TrainersTest, SmallKeysOfAxolotl) {
  const Import run = import(
      "base_model: m\nadapter: lora\nnoisy_embedding_alpha: 5\npeft: {loftq_config: {loftq_bits: "
      "4}}\ndatasets: [{path: a, type: chat_template, chat_template: tokenizer_default}]\n",
      Tool::kAxolotl);
  expect_values(run, {{"train.neftune_noise_alpha", "5.0"}});
  EXPECT_FALSE(has_key(run.not_carried, "datasets"));
  ASSERT_TRUE(has_key(run.not_carried, "peft.loftq_config"));
  EXPECT_NE(run.not_carried[0].why.find("LoftQ is not supported"), std::string::npos);
  const Import other =
      import("base_model: m\ndatasets: [{path: a, type: chat_template, chat_template: llama3}]\n",
             Tool::kAxolotl);
  EXPECT_TRUE(has_key(other.not_carried, "datasets"));
}

TEST_F(TrainersTest, ACosineWithAMinimumIsACosine) {
  const std::string factory = "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\n",
                    trl = "model_name_or_path: m\n", axolotl = kOffloadOfAxolotl;
  for (const auto& [text, tool] : std::vector<std::pair<std::string, Tool>>{
           {trl + "lr_scheduler_type: cosine_with_min_lr\n", Tool::kTrl},
           {trl + "lr_scheduler_type: cosine_warmup_with_min_lr\n", Tool::kTrl},
           {factory + "lr_scheduler_type: cosine_with_min_lr\n", Tool::kLlamaFactory},
           {axolotl + "lr_scheduler: cosine_with_min_lr\n", Tool::kAxolotl}}) {
    SCOPED_TRACE(text);
    const Import run = import(text, tool);
    EXPECT_EQ(value_of(run, "train.scheduler"), "\"cosine\"");
    EXPECT_NE(to_yaml(run).find("ends at zero"), std::string::npos) << to_yaml(run);
  }
  for (const char* key : {"cosine_min_lr_ratio", "min_lr", "min_lr_ratio"}) {
    const Import run = import(fmt::format("{}{}: 0.1\n", axolotl, key), Tool::kAxolotl);
    ASSERT_TRUE(has_key(run.not_carried, key));
    EXPECT_NE(to_yaml(run).find("ends at zero"), std::string::npos) << key;
  }
}

constexpr const char* kLacksValidation = "validation data (data.val or data.val_split)";
constexpr const char* kTrlFile =
    "model_name_or_path: m\nmax_length: 8\ndataset_name: data/train.jsonl\n";

/// A file has no split: without one the validation data would be the training data.
TEST_F(TrainersTest, TheTrainingFileIsNoValidationData) {
  const Import trl = import(std::string(kTrlFile) + "eval_strategy: epoch\n", Tool::kTrl);
  EXPECT_EQ(value_of(trl, "data.val"), "none");
  EXPECT_EQ(trl.missing, std::vector<std::string>{kLacksValidation});
  EXPECT_TRUE(has_key(trl.not_carried, "dataset_name"));
  EXPECT_NE(to_yaml(trl).find(kLacksValidation), std::string::npos);

  const Import split =
      import(std::string(kTrlFile) + "eval_strategy: epoch\ntest_split_size: 0.1\n", Tool::kTrl);
  expect_values(split, {{"data.val", "none"}, {"data.val_split", "0.1"}});
  EXPECT_TRUE(split.missing.empty());

  const Import hub = import(
      "model_name_or_path: m\nmax_length: 8\ndataset_name: o/d\nevaluation_strategy: epoch\n",
      Tool::kTrl);
  EXPECT_NE(value_of(hub, "data.val").find(R"("split":"test")"), std::string::npos);

  const Import wanted = import(
      std::string(kTrlFile) + "eval_strategy: epoch\ndataset_test_split: train\n", Tool::kTrl);
  EXPECT_NE(value_of(wanted, "data.val"), "none") << "the file says so";

  const std::string tune =
      "checkpointer: {checkpoint_dir: m}\ntokenizer: {max_seq_len: 8}\nrun_val_every_n_steps: 5\n"
      "dataset: {_component_: torchtune.datasets.alpaca_dataset, split: 'train[:95%]'}\n";
  const Import shares = import(
      tune +
          "dataset_val: {_component_: torchtune.datasets.alpaca_dataset, split: 'train[95%:]'}\n",
      Tool::kTorchtune);
  EXPECT_EQ(value_of(shares, "data.val"), "none");
  EXPECT_EQ(shares.missing, std::vector<std::string>{kLacksValidation});

  const Import axolotl = import(
      "base_model: m\ndatasets: [{path: a.jsonl, type: alpaca}]\nevals_per_epoch: 1\n"
      "test_datasets: [{path: a.jsonl, type: alpaca, split: test}, {path: b.jsonl, split: test}]\n",
      Tool::kAxolotl);
  const std::string kept = value_of(axolotl, "data.val");
  EXPECT_EQ(kept.find("a.jsonl"), std::string::npos) << kept;
  EXPECT_NE(kept.find("b.jsonl"), std::string::npos) << kept;
}

TEST_F(TrainersTest, EvaluationsNeedValidationData) {
  const std::string mixture =
      "model_name_or_path: m\nmax_length: 8\ndatasets: [{path: o/d, split: train}]\n";
  for (const char* asks :
       {"eval_strategy: steps\neval_steps: 5\n", "load_best_model_at_end: true\n"})
    EXPECT_EQ(import(mixture + asks, Tool::kTrl).missing,
              std::vector<std::string>{kLacksValidation})
        << asks;
  EXPECT_TRUE(import(mixture + "eval_strategy: 'no'\n", Tool::kTrl).missing.empty());
  const Import factory =
      import("model_name_or_path: m\nfinetuning_type: lora\nstage: sft\neval_strategy: steps\n",
             Tool::kLlamaFactory);
  EXPECT_EQ(factory.missing.back(), kLacksValidation);
}

/// These tools evaluate only where there are validation data.
TEST_F(TrainersTest, EvaluationsWithoutDataHaveNoMeaning) {
  const std::string axolotl = "base_model: m\ndatasets: [{path: a.jsonl}]\neval_steps: 5\n";
  const Import off = import(axolotl + "val_set_size: 0.0\n", Tool::kAxolotl);
  EXPECT_EQ(value_of(off, "train.eval_steps"), "none");
  EXPECT_TRUE(has_key(off.no_meaning, "eval_steps"));
  EXPECT_TRUE(off.missing.empty());
  EXPECT_EQ(value_of(import(axolotl + "val_set_size: 0.1\n", Tool::kAxolotl), "train.eval_steps"),
            "5");
  const Import tune = import(
      "checkpointer: {checkpoint_dir: m}\ntokenizer: {max_seq_len: 8}\nrun_val_every_n_steps: 5\n"
      "dataset: {_component_: torchtune.datasets.alpaca_dataset}\n",
      Tool::kTorchtune);
  EXPECT_TRUE(has_key(tune.no_meaning, "run_val_every_n_steps"));
  EXPECT_TRUE(tune.missing.empty());
}

TEST_F(TrainersTest, OnlyTheCheckpointsOfTheFileAreWritten) {
  const auto expect_saves = [&](const std::string& keys, const Values& values) {
    SCOPED_TRACE(keys);
    expect_values(import(kTrlFile + keys, Tool::kTrl), values);
  };
  expect_saves("save_steps: 50\n", {{"train.save_steps", "50"}, {"train.save_every", "\"0\""}});
  expect_saves("checkpoint_every: 50\n",
               {{"train.save_steps", "50"}, {"train.save_every", "\"0\""}});
  expect_saves("save_strategy: steps\n",
               {{"train.save_steps", "500"}, {"train.save_every", "\"0\""}});
  expect_saves("save_strategy: best\n",
               {{"train.load_best_model_at_end", "true"}, {"train.save_every", "\"0\""}});
  expect_saves("save_total_limit: 2\n",
               {{"train.save_steps", "none"}, {"train.save_every", "none"}});
}

TEST_F(TrainersTest, AnAdapterOnAQuantisedBaseHasOneForm) {
  const auto expect_form = [&](Tool tool, const std::string& text, const char* quant) {
    SCOPED_TRACE(text);
    expect_values(import(text, tool), {{"tuning.mode", "\"qlora\""}, {"tuning.quant", quant}});
  };
  const std::string trl = std::string(kTrlFile) + "use_peft: true\n",
                    axolotl = "base_model: m\ndatasets: [{path: a.jsonl}]\n",
                    factory = "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\n";
  expect_form(Tool::kTrl, trl + "load_in_4bit: true\n", "none");
  expect_form(Tool::kTrl, trl + "load_in_4bit: true\nbnb_4bit_quant_type: nf4\n", "none");
  expect_form(Tool::kTrl, trl + "load_in_4bit: true\nbnb_4bit_quant_type: fp4\n", "\"fp4\"");
  expect_form(Tool::kTrl, trl + "load_in_8bit: true\n", "\"int8\"");
  expect_form(Tool::kAxolotl, axolotl + "adapter: qlora\nload_in_4bit: true\n", "none");
  expect_form(Tool::kAxolotl, axolotl + "adapter: lora\nload_in_4bit: true\n", "none");
  expect_form(Tool::kAxolotl, axolotl + "adapter: lora\nload_in_8bit: true\n", "\"int8\"");
  expect_form(Tool::kLlamaFactory, factory + "quantization_bit: 4\n", "none");
  expect_form(Tool::kLlamaFactory, factory + "quantization_bit: 8\n", "\"int8\"");
  const Import run = import(trl + "load_in_4bit: true\n", Tool::kTrl);
  EXPECT_NE(to_yaml(run).find("# use_peft, load_in_4bit"), std::string::npos) << to_yaml(run);
}

TEST_F(TrainersTest, TrackersAreAnsweredWithTheirPage) {
  for (const char* key : {"report_to: comet_ml\n", "use_comet: true\n", "mlflow_anything: 1\n"}) {
    const Import run = import(std::string(kTrlFile) + key, Tool::kTrl);
    ASSERT_EQ(run.not_carried.empty(), false) << key;
    const auto names_page = [](const ImportNote& note) {
      return note.why.find("docs/experiment-trackers.md") != std::string::npos;
    };
    EXPECT_TRUE(std::any_of(run.not_carried.begin(), run.not_carried.end(), names_page)) << key;
  }
}

}  // namespace
}  // namespace sftrun::foreign
