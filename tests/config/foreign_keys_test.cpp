#include "sftrun/config/foreign_keys.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "config_test_base.h"
#include "known_keys.h"
#include "sftrun/config/binding.h"
#include "sftrun/config/problem.h"

namespace sftrun::config {
namespace {

struct NamedKey {
  std::string tool, key;
};

/// Made by scripts/fixtures/make_foreign_keys.py.
std::vector<NamedKey> keys_of_other_tools() {
  std::ifstream file(std::string(SFTRUN_TEST_DATA) + "/config/foreign_keys.txt");
  std::vector<NamedKey> keys;
  for (NamedKey one; file >> one.tool >> one.key;) keys.push_back(one);
  return keys;
}

/// What stands in backquotes, up to a colon: `tuning.quant` of "`tuning.quant: nf4`".
std::vector<std::string> settings_in(std::string_view advice) {
  std::vector<std::string> settings;
  const auto quoted = [&](std::string_view text) {
    const std::string name(text.substr(0, text.find_first_of(": ")));
    for (const char* section :
         {"model.", "tuning.", "data.", "train.", "parallel.", "output.", "callbacks."})
      if (name.starts_with(section)) settings.push_back(name);
  };
  for (size_t at = advice.find('`'); at != std::string_view::npos;) {
    const size_t end = advice.find('`', at + 1);
    EXPECT_NE(end, std::string_view::npos) << advice;
    if (end == std::string_view::npos) break;
    quoted(advice.substr(at + 1, end - at - 1));
    at = advice.find('`', end + 1);
  }
  return settings;
}

class ForeignKeysTest : public ConfigTest {
 protected:
  bool is_ours(const std::string& name) { return fields_.find(name) || fields_.has_section(name); }
  bool is_leaf_of_ours(std::string_view leaf) {
    return std::any_of(fields_.fields.begin(), fields_.fields.end(),
                       [&](const Field& field) { return field.leaf() == leaf; });
  }
  std::string answer(const std::string& key, const std::string& value) {
    return suggest_key(key, Value::scalar(value), fields_);
  }

  RunConfig defaults_;
  Binding fields_ = bind(defaults_);
};

TEST_F(ForeignKeysTest, NamedSettingsExist) {
  for (const ForeignKey& key : foreign_keys()) {
    EXPECT_TRUE(key.field.empty() || is_ours(std::string(key.field))) << key.name << key.field;
    EXPECT_FALSE(key.fix.empty()) << key.name;
    for (const std::string& setting : settings_in(key.fix))
      EXPECT_TRUE(is_ours(setting)) << key.name << ": " << setting;
    for (const auto& [value, fix] : key.values)
      for (const std::string& setting : settings_in(fix))
        EXPECT_TRUE(is_ours(setting)) << key.name << " " << value << ": " << setting;
  }
}

TEST_F(ForeignKeysTest, NamedValuesAreAccepted) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::string>>{{"tuning.mode", "qlora"},
                                                        {"tuning.quant", "nf4"},
                                                        {"tuning.quant", "int8"},
                                                        {"tuning.quant", "fp8"},
                                                        {"tuning.lora.init", "pissa"},
                                                        {"train.save_every", "0"},
                                                        {"data.loss_on", "completion"},
                                                        {"data.loss_on", "last_assistant"},
                                                        {"data.too_long", "truncate"},
                                                        {"train.optimizer", "paged_adamw_8bit"},
                                                        {"train.optimizer", "adafactor"},
                                                        {"train.optimizer", "muon"},
                                                        {"parallel.strategy", "ddp"},
                                                        {"data.thinking", "split"},
                                                        {"train.objective", "dpo"},
                                                        {"data.cache_dir", "none"}}) {
    EXPECT_FALSE(fields_.find(key)->assign(Value::scalar(value))) << key << " " << value;
  }
}

TEST_F(ForeignKeysTest, NamesAreUniqueAndNotFields) {
  std::set<std::string_view> names;
  for (const ForeignKey& key : foreign_keys())
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
  EXPECT_GT(names.size(), 700U);
  // Settings of ours whose name is that of another one elsewhere.
  const std::set<std::string> shared = {"seed", "chat_template", "beta", "max_completion_length",
                                        "generation_batch_size"};
  for (const Field& field : fields_.fields) {
    if (shared.contains(field.leaf())) continue;
    EXPECT_EQ(find_foreign_key(field.leaf()), nullptr)
        << field.key << ": a setting of ours: remove it from foreign_keys.yaml";
  }
}

/// Which of two beginnings would answer would depend on the order of the table.
TEST_F(ForeignKeysTest, NoBeginningBeginsAnother) {
  std::vector<std::string> beginnings;
  for (const ForeignKey& key : foreign_keys())
    if (key.name.ends_with('*')) beginnings.push_back(key.name.substr(0, key.name.size() - 1));
  EXPECT_GT(beginnings.size(), 20U);
  for (const std::string& one : beginnings)
    for (const std::string& other : beginnings)
      EXPECT_FALSE(one != other && one.starts_with(other)) << one << " " << other;
}

TEST_F(ForeignKeysTest, ARowWithoutAnAnswerIsAnError) {
  const auto error_of = [](const std::string& row) -> std::string {
    try {
      read_foreign_keys("# the first line\n- " + row);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of("{keys: [optim], use: train.optimizer, values: {lion: use lion}}"),
            "no error");
  for (const auto& [row, message] : std::vector<std::pair<std::string, std::string>>{
           {"{keys: [optim]}", "a row has either `use` or `fix`"},
           {"{keys: [optim], use: train.optimizer, fix: remove it}", "either `use` or `fix`"},
           {"{keys: [optim], use: train.optimizer, field: model.name}", "`use` is the field"},
           {"{keys: [optim], fixx: remove it}", "unknown entry `fixx`"},
           {"{keys: optim, fix: remove it}", "`keys` is not a list"},
           {"{keys: [], fix: remove it}", "a row without keys"},
           {"{keys: [optim], fix: [remove it]}", "`fix` has a list, not a text"},
           {"{keys: [optim], fix: remove it, values: [true]}", "`values` is not a map"},
           {"[optim]", "a row is a list, not a map"},
           {"{keys: [optim], fix: remove it, fix: use it}", "`fix` is given twice"}}) {
    const std::string error = error_of(row);
    EXPECT_NE(error.find(message), std::string::npos) << error;
    EXPECT_NE(error.find("foreign_keys.yaml:2"), std::string::npos) << error;
  }
}

TEST_F(ForeignKeysTest, AnswersEveryKeyOfOtherTools) {
  const std::vector<NamedKey> keys = keys_of_other_tools();
  EXPECT_GT(keys.size(), 600U);
  std::set<std::string> tools;
  for (const auto& [tool, key] : keys) {
    tools.insert(tool);
    EXPECT_TRUE(find_foreign_key(key) != nullptr || is_leaf_of_ours(key)) << tool << " " << key;
  }
  for (const char* tool :
       {"transformers.TrainingArguments", "trl.SFTConfig", "trl.DPOConfig", "peft.LoraConfig",
        "transformers.BitsAndBytesConfig", "axolotl", "llama-factory", "torchtune", "unsloth"})
    EXPECT_TRUE(tools.contains(tool)) << tool;
}

TEST_F(ForeignKeysTest, AnswersFollowTheValue) {
  EXPECT_EQ(answer("lr", "1e-4"), "use `train.learning_rate`");
  EXPECT_EQ(answer("train.per_device_train_batch_size", "4"), "use `train.batch_size`");
  EXPECT_EQ(answer("load_in_4bit", "true"),
            "set `tuning.mode: qlora` (a base in NF4), or `tuning.quant: nf4`");
  EXPECT_NE(answer("load_in_4bit", "no").find("remove it"), std::string::npos);
  EXPECT_NE(answer("saves_per_epoch", "1").find("`train.save_strategy: epoch`"), std::string::npos);
  EXPECT_EQ(answer("report_to", "wandb"), "did you mean `output.report_to`?");
  EXPECT_NE(answer("log_with", "wandb").find("`output.report_to`"), std::string::npos);
  EXPECT_EQ(answer("wandb_project", "x"), "use `output.tracking.project`");
  EXPECT_NE(answer("wandb_entity", "x").find("remove it"), std::string::npos);
  EXPECT_NE(answer("chat_template", "tokenizer_default").find("remove it"), std::string::npos);
  EXPECT_EQ(answer("chat_template", "chatml"), "use `model.chat_template`");
  EXPECT_EQ(answer("adafactor", "true"),
            "set `train.optimizer: adafactor` (true), or remove it (false)");
  EXPECT_EQ(answer("use_muon", "true"), "set `train.optimizer: muon` (true), or remove it (false)");
  EXPECT_NE(answer("use_galore", "true").find("docs/optimizers.md"), std::string::npos);
  EXPECT_EQ(answer("data.path", "x"), "use `data.train`");
  for (const char* key : {"model.path", "model.name_or_path"})
    EXPECT_EQ(answer(key, "x"), "use `model.name`");
  for (const char* key : {"rl", "stage"})
    EXPECT_EQ(answer(key, "dpo"), "set `train.objective: dpo`");
  EXPECT_EQ(answer("loss_type", "[sigmoid]"), "did you mean `train.loss_type`?");
  EXPECT_EQ(answer("f_divergence_type", "js_divergence"), "use `train.f_divergence`");
  EXPECT_EQ(answer("stage", "sft"), "not needed: `train.objective` is sft by default; remove it");
  for (const char* key : {"pref_beta", "dpo_beta", "rl_beta"})
    EXPECT_EQ(answer(key, "0.1"), "use `train.beta`");
  for (const char* key : {"beta", "trl.beta"})
    EXPECT_EQ(answer(key, "0.1"), "use `train.beta`; of distillation (GKD) it is `train.kd_beta`");
  for (const char* known : {"ipo", "kto", "orpo", "simpo", "grpo"})
    EXPECT_TRUE(answer("rl", known).starts_with(fmt::format("set `train.objective: {}`", known)));
  EXPECT_NE(answer("rl", "gdpo").find("`train.objective` takes sft, dpo"), std::string::npos);
  EXPECT_EQ(answer("ref_model", "x"), "use `train.reference`");
  EXPECT_NE(answer("ref_model_init_kwargs", "x").find("what `train.reference` names"),
            std::string::npos);
  EXPECT_EQ(answer("precompute_ref_log_probs", "true"), "set `train.reference_logps: precomputed`");
  EXPECT_EQ(answer("train.learning_rte", "1"), "did you mean `train.learning_rate`?");
  EXPECT_EQ(answer("train.optm", "adamw"), "did you mean `optim`? use `train.optimizer`");
  for (const char* key : {"parallel.sp", "parallel.context_parallel_size",
                          "sequence_parallel_degree", "ulysses_sequence_parallel_size"})
    EXPECT_EQ(answer(key, "2"), "use `parallel.cp`") << key;
  EXPECT_TRUE(answer("ring_attn_func", "zigzag").starts_with("`parallel.cp` is the number"));
  for (const char* key : {"parallel.ep", "parallel.expert_parallel", "expert_model_parallel_size"})
    EXPECT_TRUE(answer(key, "2").starts_with("expert parallelism is not available")) << key;
  for (const char* key : {"train.packing", "packing", "data.pack", "train.pack"})
    EXPECT_EQ(answer(key, "false"), "did you mean `data.packing`?") << key;
  EXPECT_TRUE(
      answer("data.packing_strateg", "bfd").starts_with("did you mean `packing_strategy`?"));
}

/// Keys of TRL's GRPOConfig and GKDConfig, also below `trl` of Axolotl and in sections of ours.
TEST_F(ForeignKeysTest, AnswersOfRollouts) {
  for (const auto& [key, setting] : std::vector<std::pair<std::string, std::string>>{
           {"num_generations", "train.rollouts.n"},
           {"max_completion_length", "train.rollouts.max_new_tokens"},
           {"generation_batch_size", "train.rollouts.batch_size"},
           {"reward_weights", "train.rollouts.reward: [number, {name: json, weight: 0.5}]"},
           {"lmbda", "train.rollouts.share"},
           {"seq_kd", "sftrun generate"},
           {"teacher_model_name_or_path", "train.teacher"},
           {"teacher_model_init_kwargs", "train.teacher_quant"},
           {"use_vllm", "train.rollouts.engine: http://"},
           {"vllm_server_base_url", "train.rollouts.engine"},
           {"vllm_importance_sampling_mode", "train.sampling_correction"},
           {"num_completions_to_print", "train.rollouts.num_samples"},
           {"kd_ce_alpha", "train.kd_alpha"}})
    for (const char* section : {"", "train.", "train.rollouts.", "trl."})
      EXPECT_NE(answer(section + key, "x").find("`" + setting), std::string::npos)
          << section << key << ": " << answer(section + key, "x");
  EXPECT_NE(answer("num_iterations", "2").find("`train.rollouts.num_iterations`"),
            std::string::npos);
  EXPECT_TRUE(answer("steps_per_generation", "4").starts_with("not supported: a batch of answers"));
  EXPECT_TRUE(answer("lmbda", "0.0").starts_with("not needed: without `train.rollouts.share`"));
  EXPECT_TRUE(answer("use_vllm", "false").starts_with("not needed"));
  EXPECT_EQ(answer("lora_task_type", "SEQ_CLS").find("set `train.objective: reward`"), 0U);
  EXPECT_EQ(answer("stage", "rm").find("set `train.objective: reward`"), 0U);
}

TEST_F(ForeignKeysTest, AnUnknownKeyOfASectionElsewhereIsAnsweredBySection) {
  EXPECT_NE(answer("vllm.max_model_len", "512").find("a setting of the server"), std::string::npos);
  EXPECT_NE(answer("vllm.port", "8000").find("http://HOST:PORT/v1"), std::string::npos);
  EXPECT_NE(answer("trl.rollout_func", "f").find("`train.rollouts`"), std::string::npos);
  EXPECT_EQ(answer("optimizer.weight_decay", "0"), "did you mean `train.weight_decay`?");
}

TEST_F(ForeignKeysTest, AListOfOneIsItsValue) {
  Value list;
  list.kind = Value::Kind::kList;
  list.items.push_back(Value::scalar("steps"));
  EXPECT_NE(suggest_key("logging_strategy", list, fields_).find("and remove logging_strategy"),
            std::string::npos);
}

TEST_F(ForeignKeysTest, InsideOfADataSetToo) {
  try {
    load("", {"data.train=[{path: a.jsonl, type: sharegpt}]"});
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("set `data.format: sharegpt`"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace sftrun::config
