#include <fmt/format.h>

#include "foreign/import_test_base.h"
#include "sftrun/config/problem.h"
#include "support/expect_error.h"

/// Preference training: objectives, losses and their settings, and data of pairs and judged answers.
namespace sftrun::foreign {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

class PreferenceTest : public ImportTest {
 protected:
  /// Imports a file, and requires that the YAML is a run with the same settings of training.
  Import checked(const std::string& text, Tool tool) {
    Import result = import(text, tool);
    const std::string yaml = to_yaml(result);
    const bool has_data = value_of(result, "data.train") != "none";
    const LoadedConfig loaded = load_config(
        write("imported.yaml", yaml),
        has_data ? std::vector<std::string>{} : std::vector<std::string>{"data.train=d"});
    RunConfig config = loaded.config;
    config::Binding fields = config::bind(config);
    for (const ImportedSetting& setting : result.settings) {
      if (!setting.key.starts_with("train.")) continue;
      EXPECT_TRUE(fields.find(setting.key)->get() == setting.value) << setting.key << "\n" << yaml;
    }
    return result;
  }
  Import trl(const std::string& text) { return checked(kTrlHead + text, Tool::kTrl); }
  Import axolotl(const std::string& text) { return checked(kAxolotlHead + text, Tool::kAxolotl); }
  Import factory(const std::string& text) {
    return checked(kFactoryHead + text, Tool::kLlamaFactory);
  }
  Import torchtune(const std::string& loss) {
    return checked(
        "checkpointer: {checkpoint_dir: m}\ntokenizer: {max_seq_len: 8}\n"
        "model: {_component_: torchtune.models.llama3.lora_llama3_8b}\n"
        "dataset: {_component_: torchtune.datasets.preference_dataset, source: d}\nloss: " +
            loss + "\n",
        Tool::kTorchtune);
  }
  void refused(const std::string& text, Tool tool, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(text);
    test::expect_error<ConfigError>([&] { import(text, tool); }, parts);
  }
  static void expect_values(const Import& import, const Values& values) {
    for (const auto& [field, value] : values) EXPECT_EQ(value_of(import, field), value) << field;
  }
  static std::string why(const std::vector<ImportNote>& notes, const std::string& key) {
    std::string text;
    for (const ImportNote& note : notes)
      if (note.key == key) text += note.why + "\n";
    return text;
  }
  static void expect_lost(const Import& import, const std::string& key, const std::string& part) {
    EXPECT_NE(why(import.not_carried, key).find(part), std::string::npos)
        << key << ": " << why(import.not_carried, key);
  }
  /// The data of a conversion. Its run is not validated.
  nlohmann::ordered_json data_of(const std::string& text, Tool tool) {
    Conversion conversion = read_foreign_file(write("file", text), tool);
    EXPECT_TRUE(conversion.problems.empty());
    const Given* given = conversion.find_given("data.train");
    return given == nullptr ? nullptr : config::to_json(given->assignment.value);
  }

  inline static const std::string kTrlHead =
      "model_name_or_path: m\ndataset_name: d\nuse_peft: true\n";
  inline static const std::string kAxolotlHead =
      "base_model: m\nadapter: lora\ndatasets: [{path: d}]\nlearning_rate: 1e-6\n";
  inline static const std::string kFactoryHead =
      "model_name_or_path: m\nfinetuning_type: lora\nlora_target: all\ncutoff_len: 8\n";
};

// ---- TRL

TEST_F(PreferenceTest, KeysOfTrlTellTheTrainer) {
  for (const auto& [keys, objective] : Values{{"loss_type: kto", "kto"},
                                              {"desirable_weight: 1.5", "kto"},
                                              {"undesirable_weight: 0.5\nbeta: 0.2", "kto"},
                                              {"loss_type: simpo", "simpo"},
                                              {"loss_type: [simpo]", "simpo"},
                                              {"cpo_alpha: 0.5", "cpo"},
                                              {"simpo_gamma: 1.0", "cpo"},
                                              {"loss_type: hinge\ncpo_alpha: 0.5", "cpo"},
                                              {"loss_type: hinge", "dpo"},
                                              {"loss_type: [sigmoid, sft]", "dpo"},
                                              {"ld_alpha: 0.5", "dpo"},
                                              {"discopop_tau: 0.1", "dpo"},
                                              {"reference_free: false", "dpo"},
                                              {"reference_free: true", "cpo"},
                                              {"beta: 0.2", "dpo"},
                                              {"loss_type: nll", "sft"},
                                              {"lora_r: 4", "sft"}}) {
    SCOPED_TRACE(keys);
    const Import run = trl(keys + "\n");
    EXPECT_EQ(value_of(run, "train.objective"), '"' + objective + '"');
    const bool is_sft = objective == "sft";
    EXPECT_EQ(value_of(run, "train.learning_rate"), is_sft ? "2e-05" : "1e-06");
    EXPECT_EQ(value_of(run, "data.loss_on"), is_sft ? "\"all\"" : "none");
    EXPECT_EQ(value_of(run, "tuning.lora.dropout"), is_sft ? "0.05" : "none");
  }
}

TEST_F(PreferenceTest, ASharedKeyOfTrlIsListed) {
  for (const char* key : {"beta", "disable_dropout"})  // DPOConfig and others
    expect_lost(trl(fmt::format("{}: 1\n", key)), key, "DPO is assumed");
  EXPECT_EQ(why(trl("loss_type: sigmoid\nbeta: 0.2\n").not_carried, "beta"), "");
}

TEST_F(PreferenceTest, KeysOfTwoTrainersOfTrlAreAnError) {
  refused(
      kTrlHead + "desirable_weight: 1\nsimpo_gamma: 1\n", Tool::kTrl,
      {"`desirable_weight` is for KTOConfig, and `simpo_gamma` for CPOConfig", "file:4", "file:5"});
  refused(kTrlHead + "loss_type: kto\nld_alpha: 0.5\n", Tool::kTrl,
          {"`loss_type` is for KTOConfig, and `ld_alpha` for DPOConfig"});
  refused(kTrlHead + "cpo_alpha: 1\nloss_type: [sigmoid, sft]\n", Tool::kTrl,
          {"`cpo_alpha` is for CPOConfig, and `loss_type` for DPOConfig"});
}

TEST_F(PreferenceTest, ListsOfLossesOfTrlAreASum) {
  expect_values(trl("loss_type: [sigmoid, bco_pair, sft]\nloss_weights: [0.8, 0.2, 1.0]\n"),
                {{"train.loss_type", R"({"sigmoid":0.8,"bco_pair":0.2,"sft":1.0})"}});
  expect_values(trl("loss_type: [sigmoid, sft]\n"),
                {{"train.loss_type", R"({"sigmoid":1.0,"sft":1.0})"}});
  expect_values(trl("loss_type: [sigmoid, hinge, sigmoid]\nloss_weights: [1, 0, 0.5]\n"),
                {{"train.loss_type", R"({"sigmoid":1.5})"}});
  expect_values(trl("loss_type: [Hinge]\n"), {{"train.loss_type", "\"hinge\""}});
  expect_values(trl("loss_weights: [0.5]\n"), {{"train.loss_type", R"({"sigmoid":0.5})"}});
  expect_values(trl("loss_type: apo_down\nloss_weights: null\n"),
                {{"train.loss_type", "\"apo_down\""}});
  refused(kTrlHead + "loss_type: [sigmoid, sft]\nloss_weights: [1]\n", Tool::kTrl,
          {"`loss_weights` is a list of 1, and `loss_type` has 2 losses",
           "one weight for each loss", "file:5"});
  refused(kTrlHead + "loss_weights: [1, 2]\n", Tool::kTrl, {"`loss_type` has one loss"});
  refused(kTrlHead + "loss_type: [sigmoid]\nloss_weights: [-1]\n", Tool::kTrl,
          {"`loss_weights` has the weight `-1`"});
  refused(kTrlHead + "loss_type: [sigmoid]\nloss_weights: [0]\n", Tool::kTrl,
          {"`loss_type` names no loss"});
}

TEST_F(PreferenceTest, RpoAlphaOfOldTrlIsTheWeightOfSft) {
  expect_values(trl("rpo_alpha: 0.5\n"), {{"train.loss_type", R"({"sigmoid":1.0,"sft":0.5})"}});
  expect_values(trl("loss_type: hinge\nrpo_alpha: 2\n"),
                {{"train.loss_type", R"({"hinge":1.0,"sft":2.0})"}});
  expect_values(trl("loss_type: ipo\nrpo_alpha: null\n"), {{"train.loss_type", "\"ipo\""}});
}

TEST_F(PreferenceTest, DpoOfTrlWithoutAReferenceIsCpo) {
  expect_values(trl("reference_free: true\nlabel_smoothing: 0.1\nloss_type: hinge\n"),
                {{"train.objective", "\"cpo\""},
                 {"train.cpo_alpha", "0.0"},
                 {"train.loss_type", "\"hinge\""}});
  expect_values(trl("reference_free: true\nrpo_alpha: 0.5\n"),
                {{"train.objective", "\"cpo\""}, {"train.cpo_alpha", "0.5"}});
  refused(kTrlHead + "reference_free: true\nloss_type: robust\n", Tool::kTrl,
          {"the loss robust", "the losses of `train.objective: cpo`"});
}

/// TRL 1.16 reads label_smoothing with two losses of DPO alone.
TEST_F(PreferenceTest, SmoothingThatTrlIgnoresIsLeftOut) {
  const auto smoothing = [&](const std::string& keys) {
    return trl(keys + "label_smoothing: 0.1\n");
  };
  for (const char* loss : {"robust", "exo_pair"})
    expect_values(smoothing(fmt::format("loss_type: {}\n", loss)),
                  {{"train.label_smoothing", "0.1"}});
  for (const char* loss : {"loss_type: sigmoid\n", "loss_type: sigmoid_norm\n", ""}) {
    const Import run = smoothing(loss);
    expect_values(run, {{"train.label_smoothing", "none"}});
    expect_lost(run, "label_smoothing", "TRL 1.16 ignores it with the loss sigmoid");
  }
  const Import ipo = smoothing("loss_type: ipo\n");
  expect_values(ipo, {{"train.label_smoothing", "none"}});
  EXPECT_TRUE(has_key(ipo.no_meaning, "label_smoothing"));
  const Import both = smoothing("loss_type: [robust, sigmoid]\n");
  expect_values(both, {{"train.label_smoothing", "0.1"}});
  expect_lost(both, "label_smoothing", "the labels of sigmoid are smoothed, too");
  expect_values(trl("loss_type: exo_pair\nlabel_smoothing: 0.0\n"),
                {{"train.label_smoothing", "none"}});  // the default here is that of the paper
  expect_values(smoothing("cpo_alpha: 1\n"), {{"train.label_smoothing", "0.1"}});
  expect_values(smoothing("loss_type: simpo\n"), {{"train.label_smoothing", "0.1"}});
  expect_values(smoothing("cpo_alpha: 1\nloss_type: hinge\n"), {{"train.label_smoothing", "none"}});
  EXPECT_TRUE(has_key(smoothing("loss_type: kto\n").no_meaning, "label_smoothing"));
}

TEST_F(PreferenceTest, SettingsOfDpoOfTrl) {
  const Import run =
      trl("beta: 0.3\nld_alpha: 0.5\nf_divergence_type: alpha_divergence\n"
          "f_alpha_divergence_coef: 0.7\nloss_type: discopop\ndiscopop_tau: 0.1\n"
          "precompute_ref_batch_size: 4\nuse_weighting: false\nsync_ref_model: false\n"
          "ref_model_mixup_alpha: 0.6\ndisable_dropout: true\n");
  expect_values(run, {{"train.beta", "0.3"},
                      {"train.ld_alpha", "0.5"},
                      {"train.f_divergence", "\"alpha_divergence\""},
                      {"train.f_alpha_divergence_coef", "0.7"},
                      {"train.loss_type", "\"discopop\""},
                      {"train.discopop_tau", "0.1"}});
  expect_lost(run, "f_divergence_type", "1 minus that of the file");
  for (const char* key : {"precompute_ref_batch_size", "ref_model_mixup_alpha", "disable_dropout"})
    EXPECT_TRUE(has_key(run.no_meaning, key)) << key;
  EXPECT_EQ(run.not_carried.size(), 1U);
  expect_lost(trl("loss_type: sigmoid\ndisable_dropout: false\n"), "disable_dropout", "no dropout");
  EXPECT_EQ(trl("loss_type: sigmoid\ndisable_dropout: false\nlora_dropout: 0\n").not_carried.size(),
            0U);
}

TEST_F(PreferenceTest, WhatPreferenceOfTrlCannotHaveIsAnError) {
  for (const auto& [keys, part] :
       Values{{"use_weighting: true", "WPO"},
              {"sync_ref_model: true", "does not change"},
              {"alpha: 0.1", "AlphaPO"},
              {"loss_type: alphapo", "`alphapo`, which is not supported"},
              {"loss_type: aot", "the loss aot"},
              {"loss_type: [sigmoid, aot_unpaired]", "aot_unpaired"},
              {"loss_type: apo_zero_unpaired", "apo_zero_unpaired"},
              {"loss_type: kto_pair", "the loss kto_pair"}})
    refused(kTrlHead + keys + "\n", Tool::kTrl, {part, "not supported"});
  EXPECT_EQ(value_of(trl("alpha: 0.0\n"), "train.objective"), "\"cpo\"");
}

TEST_F(PreferenceTest, SimpoOfTrlAddsTheCrossEntropy) {
  expect_values(trl("loss_type: simpo\nbeta: 2.5\nsimpo_gamma: 1.4\n"),
                {{"train.cpo_alpha", "1.0"},
                 {"train.beta", "2.5"},
                 {"train.simpo_gamma", "1.4"},
                 {"train.loss_type", "none"}});
  expect_values(trl("loss_type: simpo\ncpo_alpha: 0.0\n"), {{"train.cpo_alpha", "0.0"}});
  expect_values(
      trl("loss_type: ipo\ncpo_alpha: 0.5\n"),
      {{"train.objective", "\"cpo\""}, {"train.loss_type", "\"ipo\""}, {"train.cpo_alpha", "0.5"}});
}

/// KTOTrainer reads the data in their order by default.
TEST_F(PreferenceTest, KtoOfTrl) {
  const Import run = trl("desirable_weight: 1.33\nundesirable_weight: 0.9\nbeta: 0.2\n");
  expect_values(run, {{"train.desirable_weight", "1.33"},
                      {"train.undesirable_weight", "0.9"},
                      {"train.beta", "0.2"},
                      {"data.shuffle", "false"}});
  expect_values(trl("loss_type: kto\ntrain_sampling_strategy: random\n"),
                {{"data.shuffle", "true"}});
  expect_values(trl("loss_type: kto\ntrain_sampling_strategy: sequential\n"),
                {{"data.shuffle", "false"}});
  expect_values(trl("loss_type: sigmoid\n"), {{"data.shuffle", "none"}});
  expect_values(trl("train_sampling_strategy: group_by_length\n"),
                {{"data.group_by_length", "true"}, {"data.shuffle", "none"}});
  EXPECT_TRUE(
      has_key(trl("train_sampling_strategy: sorted\n").not_carried, "train_sampling_strategy"));
}

// ---- Axolotl

TEST_F(PreferenceTest, GrpoOfTrl) {
  const Import run =
      trl("loss_type: dr_grpo\nbeta: 0.04\nepsilon: 0.1\nepsilon_high: 0.28\ndelta: "
          "2.5\nscale_rewards: false\n"
          "importance_sampling_level: sequence\nmask_truncated_completions: true\n"
          "max_completion_length: 300\nvllm_importance_sampling_mode: token_truncate\n"
          "vllm_importance_sampling_cap: 2.0\ntemperature: 0.7\ntop_p: 0.95\ntop_k: 40\n"
          "num_generations: 8\nnum_iterations: 2\nsteps_per_generation: 4\n");
  expect_values(run, {{"train.objective", R"("grpo")"},
                      {"train.loss_type", R"("dr_grpo")"},
                      {"train.beta", "0.04"},
                      {"train.epsilon", "0.1"},
                      {"train.epsilon_high", "0.28"},
                      {"train.delta", "2.5"},
                      {"train.scale_rewards", R"("none")"},
                      {"train.importance_sampling_level", R"("sequence")"},
                      {"train.mask_truncated_completions", "true"},
                      {"train.rollouts.max_new_tokens", "300"},
                      {"train.rollouts.n", "8"},
                      {"train.rollouts.temperature", "0.7"},
                      {"train.rollouts.top_p", "0.95"},
                      {"train.rollouts.top_k", "40"},
                      {"train.rollouts.num_iterations", "2"},
                      {"train.sampling_correction", R"("token_truncate")"},
                      {"train.sampling_correction_max", "2.0"}});
  EXPECT_FALSE(has_key(run.not_carried, "num_generations")) << "it is train.rollouts.n";
  ASSERT_EQ(std::count_if(
                run.missing.begin(), run.missing.end(),
                [](const std::string& one) { return one.starts_with("train.rollouts.reward"); }),
            1);
  EXPECT_TRUE(has_key(run.no_meaning, "steps_per_generation"));
  EXPECT_TRUE(has_key(trl("num_generations: 8\ntop_k: 0\n").no_meaning, "top_k"));
  expect_values(trl("scale_rewards: true\nvllm_importance_sampling_correction: false\n"
                    "vllm_importance_sampling_mode: token_mask\n"),
                {{"train.scale_rewards", R"("group")"}, {"train.sampling_correction", R"("off")"}});
  expect_values(trl("loss_type: cispo\n"), {{"train.objective", R"("grpo")"}});
}

TEST_F(PreferenceTest, AServerOfTrlWritesTheAnswers) {
  const std::string usual = "num_generations: 8\nuse_vllm: true\nvllm_mode: server\n";
  const Import run = trl(usual);
  expect_values(run, {{"train.rollouts.engine", R"("http://127.0.0.1:8000/v1")"}});
  expect_lost(run, "use_vllm", "trl vllm-serve");
  expect_values(trl(usual + "vllm_server_host: node7\nvllm_server_port: 9000\n"),
                {{"train.rollouts.engine", R"("http://node7:9000/v1")"}});
  expect_values(trl(usual + "vllm_server_base_url: https://node7/\nvllm_server_port: 9000\n"),
                {{"train.rollouts.engine", R"("https://node7/v1")"}});
  for (const char* other : {"use_vllm: true\n", "use_vllm: false\nvllm_mode: server\n",
                            "use_vllm: true\nvllm_mode: colocate\n"})
    expect_values(trl(std::string("num_generations: 8\n") + other),
                  {{"train.rollouts.engine", "none"}});
}

TEST_F(PreferenceTest, AnswersThatGrpoOfTrlSamplesAreAnError) {
  for (const auto& [line, fix] : std::vector<std::pair<std::string, std::string>>{
           {"reward_funcs: accuracy_reward", "train.rollouts.reward"},
           {"entropy_coef: 0.1", "entropy bonus"},
           {"top_entropy_quantile: 0.2", "set it to 1.0"}})
    test::expect_error<ConfigError>([&, &line = line] { trl("epsilon: 0.2\n" + line + "\n"); },
                                    {"not supported", fix});
}

TEST_F(PreferenceTest, DistillationOfTrl) {
  const Import run = trl("lmbda: 0.0\nbeta: 0.3\ntemperature: 0.9\n");
  expect_lost(run, "lmbda", "sftrun score --topk 64");
  expect_values(run, {{"train.objective", R"("distill")"},
                      {"train.teacher", R"("teacher")"},
                      {"train.kd_alpha", "1.0"},
                      {"train.kd_beta", "0.3"},
                      {"train.kd_temperature", "none"},
                      {"train.rollouts.share", "none"},
                      {"train.beta", "none"},
                      {"train.learning_rate", "2e-05"}});
  for (const char* key : {"lmbda", "temperature"}) EXPECT_TRUE(has_key(run.no_meaning, key));
}

TEST_F(PreferenceTest, OnPolicyDistillationOfTrl) {
  const Import run = trl("lmbda: 0.25\ntemperature: 0.7\nmax_new_tokens: 64\n");
  expect_lost(run, "lmbda", "name the teacher's model");
  expect_values(run, {{"train.rollouts.share", "0.25"},
                      {"train.rollouts.temperature", "0.7"},
                      {"train.rollouts.max_new_tokens", "64"},
                      {"train.kd_temperature", "none"},
                      {"train.kd_alpha", "1.0"},
                      {"train.kd_beta", "0.5"}});
  const Import defaults = trl("seq_kd: false\nteacher_model_name_or_path: big/teacher\n");
  expect_values(defaults, {{"train.teacher", R"("big/teacher")"},
                           {"train.rollouts.share", "0.5"},
                           {"train.rollouts.temperature", "0.9"},
                           {"train.rollouts.max_new_tokens", "128"}});
  EXPECT_FALSE(has_key(defaults.not_carried, "seq_kd"));
  test::expect_error<ConfigError>([&] { trl("lmbda: 0.5\nseq_kd: true\n"); },
                                  {"not supported", "sftrun generate"});
  expect_lost(defaults, "lmbda", "GKDConfig's default, 0.5, is taken");
  expect_values(trl("teacher_model_name_or_path: big/teacher\n"),
                {{"train.objective", R"("distill")"}, {"train.rollouts.share", "0.5"}});
  EXPECT_EQ(why(run.not_carried, "lmbda").find("0.5"), std::string::npos) << "the file says it";
  for (const char* other : {"max_completion_length: 64\n", "teacher_model_revision: main\n"})
    test::expect_error<ConfigError>(
        [&] { trl(std::string("teacher_model_name_or_path: big/teacher\n") + other); },
        {"DistillationTrainer or GOLDTrainer", "train.objective: distill"});
}

TEST_F(PreferenceTest, RewardTrainingOfTrl) {
  const Values reward = {{"train.objective", R"("reward")"}, {"train.learning_rate", "0.0001"}};
  for (const char* keys :
       {"lora_task_type: SEQ_CLS\ndisable_dropout: true\n", "center_rewards_coefficient: 0.01\n"}) {
    const Import run = trl(keys);
    expect_values(run, reward);
    for (const char* key : {"disable_dropout", "trainer"})
      EXPECT_FALSE(has_key(run.not_carried, key)) << keys << key;
  }
  const Import likely = trl("disable_dropout: true\nchat_template_path: t.jinja\n");
  expect_values(likely, reward);
  expect_lost(
      likely, "disable_dropout",
      "beside `chat_template_path` RewardConfig has it, and reward training is assumed: set "
      "`train.objective`");
  expect_values(trl("disable_dropout: true\nbeta: 0.1\neos_token: x\n"),
                {{"train.objective", R"("dpo")"}});
  expect_values(trl("lora_task_type: CAUSAL_LM\npacking: true\n"),
                {{"train.objective", R"("sft")"}});
  refused(kTrlHead + "lora_task_type: SEQ_CLS\nloss_type: kto\n", Tool::kTrl,
          {"`lora_task_type` is for RewardConfig, and `loss_type` for KTOConfig"});
}

TEST_F(PreferenceTest, SftIsAssumedWhereNoKeyTellsTheTrainer) {
  expect_lost(trl("lora_r: 4\n"), "trainer", "SFTTrainer is assumed: set `train.objective`");
  for (const char* key : {"packing: false\n", "assistant_only_loss: true\n", "loss_type: nll\n"})
    EXPECT_FALSE(has_key(trl(key).not_carried, "trainer")) << key;
}

/// CPOConfig has it, too.
TEST_F(PreferenceTest, LengthOfAnswersOfTrlIsThatOfRolloutsWithGrpoAlone) {
  expect_values(trl("max_completion_length: 64\n"),
                {{"train.objective", R"("grpo")"}, {"train.rollouts.max_new_tokens", "64"}});
  const Import pairs = trl("max_completion_length: 64\ncpo_alpha: 0.5\n");
  expect_values(pairs,
                {{"train.objective", R"("cpo")"}, {"train.rollouts.max_new_tokens", "none"}});
  expect_lost(pairs, "max_completion_length", "`model.max_seq_len`");
}

TEST_F(PreferenceTest, SettingsOfTheTemplateOfTrlAreKept) {
  expect_values(trl("num_generations: 8\nchat_template_kwargs: {enable_thinking: false}\n"),
                {{"data.chat_template_kwargs", R"({"enable_thinking":false})"}});
}

TEST_F(PreferenceTest, TheSplitForEvaluationsOfTrlIsReadWithThem) {
  const Import none = trl("dataset_test_split: val\n");
  expect_values(none, {{"data.val", "none"}});
  EXPECT_NE(why(none.no_meaning, "dataset_test_split").find("eval_strategy"), std::string::npos);
  const Import some = import(
      "model_name_or_path: m\ndataset_name: a/d\ndataset_test_split: val\neval_strategy: steps\n",
      Tool::kTrl);
  expect_values(some, {{"data.val", R"([{"path":"a/d","split":"val"}])"}});
  EXPECT_FALSE(has_key(some.no_meaning, "dataset_test_split"));
}

TEST_F(PreferenceTest, ObjectivesOfAxolotl) {
  for (const char* name : {"dpo", "ipo", "kto", "orpo", "simpo"}) {
    const Import run = axolotl(fmt::format("rl: {}\n", name));
    EXPECT_EQ(value_of(run, "train.objective"), fmt::format("\"{}\"", name));
    EXPECT_EQ(value_of(run, "train.cpo_alpha"), name == std::string("simpo") ? "1.0" : "none");
  }
  for (const char* name : {"grpo", "gdpo", "ebft", "cpo", "sft"})
    refused(kAxolotlHead + fmt::format("rl: {}\n", name), Tool::kAxolotl,
            {"which is not supported", "train.objective"});
  expect_values(axolotl("rl: simpo\ncpo_alpha: 0.3\nsimpo_gamma: 0.8\n"),
                {{"train.cpo_alpha", "0.3"}, {"train.simpo_gamma", "0.8"}});
  const Import orpo = axolotl("rl: orpo\ncpo_alpha: 0.3\nkto_desirable_weight: 2\n");
  expect_values(orpo, {{"train.cpo_alpha", "none"}, {"train.desirable_weight", "none"}});
  EXPECT_TRUE(has_key(orpo.no_meaning, "cpo_alpha"));
  EXPECT_TRUE(has_key(orpo.no_meaning, "kto_desirable_weight"));
}

TEST_F(PreferenceTest, BetaOfAxolotlIsThatOfTheFirstKey) {
  const Import run = axolotl("rl: orpo\norpo_alpha: 0.1\nrl_beta: 0.2\ntrl: {beta: 0.3}\n");
  expect_values(run, {{"train.beta", "0.3"}});
  for (const char* key : {"orpo_alpha", "rl_beta"})
    EXPECT_NE(why(run.no_meaning, key).find("`trl.beta` of the file is used"), std::string::npos);
  expect_values(axolotl("rl: dpo\norpo_alpha: 0.1\nrl_beta: 0.2\n"), {{"train.beta", "0.2"}});
  expect_values(axolotl("rl: dpo\norpo_alpha: 0.4\n"), {{"train.beta", "0.4"}});
  expect_values(axolotl("rl: kto\ndpo_beta: 0.5\n"), {{"train.beta", "0.5"}});
  const Import sft = axolotl("rl_beta: 0.2\n");
  expect_values(sft, {{"train.beta", "none"}});
  EXPECT_TRUE(has_key(sft.no_meaning, "rl_beta"));
}

TEST_F(PreferenceTest, LossesOfAxolotl) {
  expect_values(axolotl("rl: dpo\ndpo_loss_type: [ipo]\n"),
                {{"train.objective", "\"dpo\""}, {"train.loss_type", "\"ipo\""}});
  expect_values(axolotl("rl: dpo\ndpo_loss_type: [sigmoid, sft]\ndpo_loss_weights: [1.0, 0.2]\n"),
                {{"train.loss_type", R"({"sigmoid":1.0,"sft":0.2})"}});
  expect_values(axolotl("rl: dpo\nrpo_alpha: 0.5\n"),
                {{"train.loss_type", R"({"sigmoid":1.0,"sft":0.5})"}});
  EXPECT_TRUE(has_key(axolotl("rl: orpo\nrpo_alpha: 0.5\n").no_meaning, "rpo_alpha"));
  for (const auto& [keys, part] :
       Values{{"rl: dpo\ndpo_loss_weights: [1.0]", "weights of `dpo_loss_type`"},
              {"rl: dpo\ndpo_loss_type: [sigmoid, sft]\ndpo_loss_weights: [1]",
               "`dpo_loss_type` has 2 losses"},
              {"rl: ipo\ndpo_loss_type: [ipo]", "`dpo_loss_type` is for `rl: dpo`"},
              {"rl: kto\ndpo_loss_weights: [1]", "`dpo_loss_weights` is for `rl: dpo`"},
              {"rl: dpo\ndpo_loss_type: [aot]", "the loss aot, which is not supported"},
              {"rl: dpo\ndpo_use_weighting: true", "`dpo_use_weighting`"}})
    refused(kAxolotlHead + keys + "\n", Tool::kAxolotl, {part});
  const Import run = axolotl(
      "rl: dpo\ndpo_loss_type: null\ndpo_label_smoothing: 0.1\ndpo_use_liger_kernel: true\n"
      "dpo_padding_free: true\ndpo_use_weighting: false\n");
  expect_lost(run, "dpo_label_smoothing", "ignores it with the loss sigmoid");
  for (const char* key : {"dpo_use_liger_kernel", "dpo_padding_free"})
    EXPECT_TRUE(has_key(run.no_meaning, key)) << key;
  expect_values(axolotl("rl: dpo\ndpo_loss_type: [robust]\ndpo_label_smoothing: 0.1\n"),
                {{"train.label_smoothing", "0.1"}});
  const Import ipo = axolotl("rl: ipo\ndpo_label_smoothing: 0.1\n");
  expect_values(ipo, {{"train.label_smoothing", "none"}});
  EXPECT_TRUE(has_key(ipo.no_meaning, "dpo_label_smoothing"));
}

/// Axolotl takes a weight of 0 as 1.
TEST_F(PreferenceTest, KtoOfAxolotl) {
  const Import run = axolotl("rl: kto\nkto_desirable_weight: 0\nkto_undesirable_weight: 0.2\n");
  expect_values(run, {{"train.desirable_weight", "none"}, {"train.undesirable_weight", "0.2"}});
  EXPECT_TRUE(has_key(run.no_meaning, "kto_desirable_weight"));
}

TEST_F(PreferenceTest, AnAdapterOfAxolotlIsTheStartWithoutAReferenceAlone) {
  for (const char* rl : {"", "rl: orpo\n", "rl: simpo\n"})
    expect_values(axolotl(fmt::format("{}lora_model_dir: sft\n", rl)),
                  {{"tuning.lora.init_from", "\"sft\""}});
  for (const char* rl : {"dpo", "ipo", "kto"}) {
    const Import run = axolotl(fmt::format("rl: {}\nlora_model_dir: sft\n", rl));
    expect_values(run, {{"tuning.lora.init_from", "none"}});
    expect_lost(run, "lora_model_dir", "trains a new one");
  }
}

TEST_F(PreferenceTest, LengthsOfAxolotl) {
  expect_values(axolotl("rl: dpo\nexcess_length_strategy: raise\n"),
                {{"data.too_long", "\"error\""}});
  expect_values(axolotl("excess_length_strategy: truncate\n"), {{"data.too_long", "\"truncate\""}});
}

TEST_F(PreferenceTest, RecordsOfAxolotl) {
  const auto source = [&](const std::string& rl, const std::string& type) {
    auto all =
        data_of(fmt::format("base_model: m\nrl: {}\ndatasets: [{{path: d, type: {}}}]\n", rl, type),
                Tool::kAxolotl);
    all[0].erase("path");
    return all[0].dump();
  };
  EXPECT_EQ(source("kto", "chatml.ultra"),
            R"({"format":"alpaca","fields":{"instruction":"prompt","output":"completion",)"
            R"("input":""}})");
  EXPECT_EQ(source("kto", "llama3.argilla"),
            R"({"format":"alpaca","fields":{"output":"completion","input":""}})");
  EXPECT_EQ(source("kto", "chatml.intel"),
            R"({"format":"alpaca","fields":{"instruction":"question","output":"completion",)"
            R"("input":""}})");
  EXPECT_EQ(source("kto", "llama3.argilla_chat"),
            R"({"format":"messages","fields":{"messages":"completion"}})");
  EXPECT_EQ(source("kto",
                   "{field_prompt: q, field_completion: a, field_label: good, "
                   "field_system: s, prompt_format: '{prompt}'}"),
            R"({"format":"prompt_completion","fields":{"prompt":"q","completion":"a",)"
            R"("label":"good"}})");
  EXPECT_EQ(source("orpo", "chat_template.argilla"), R"({"format":"preference"})");
  EXPECT_EQ(source("dpo", "chat_template.default"),
            R"({"format":"preference","fields":{"prompt":"messages"}})");
  EXPECT_EQ(source("simpo", "chatml.argilla"),
            R"({"format":"preference","fields":{"prompt":"instruction","chosen":"chosen_response",)"
            R"("rejected":"rejected_response"}})");
  EXPECT_EQ(source("ipo", "llama3.argilla_chat"), R"({"format":"preference"})");
  EXPECT_EQ(source("kto", "chat_template"), "{}");
}

TEST_F(PreferenceTest, TextsOfAxolotlAreListed) {
  const auto notes = [&](const std::string& rl, const std::string& type) {
    return why(checked("base_model: m\nadapter: lora\nlearning_rate: 1e-6\nrl: " + rl +
                           "\ndatasets: [{path: d, type: " + type + "}]\n",
                       Tool::kAxolotl)
                   .not_carried,
               "datasets");
  };
  EXPECT_NE(notes("kto", "chatml.ultra").find("the model's chat template"), std::string::npos);
  EXPECT_NE(notes("kto", "chat_template").find("type chat_template is not known"),
            std::string::npos);
  EXPECT_NE(notes("kto", "{completion_format: 'A: {completion}'}").find("trained on as they are"),
            std::string::npos);
  EXPECT_EQ(notes("kto", "{completion_format: '{completion}'}"), "");
  EXPECT_EQ(notes("dpo", "{chosen_format: '{chosen}'}"), "");
}

// ---- LLaMA-Factory

TEST_F(PreferenceTest, StagesOfLlamaFactory) {
  for (const auto& [keys, objective] :
       Values{{"stage: dpo", "dpo"},
              {"stage: dpo\npref_loss: sigmoid", "dpo"},
              {"stage: dpo\npref_loss: hinge", "dpo"},
              {"stage: dpo\npref_loss: orpo", "orpo"},
              {"stage: dpo\npref_loss: simpo\nsimpo_gamma: 0.7", "simpo"},
              {"stage: kto\nkto_chosen_weight: 1.2\nkto_rejected_weight: 0.8", "kto"}})
    EXPECT_EQ(value_of(factory(keys + "\n"), "train.objective"), '"' + objective + '"') << keys;
  const Import kto = factory(
      "stage: kto\npref_beta: 0.2\nkto_chosen_weight: 1.2\nkto_rejected_weight: 0.8\n"
      "pref_loss: sigmoid\n");
  expect_values(kto, {{"train.beta", "0.2"},
                      {"train.desirable_weight", "1.2"},
                      {"train.undesirable_weight", "0.8"},
                      {"train.loss_type", "none"}});
  EXPECT_TRUE(has_key(kto.no_meaning, "pref_loss"));
  const Import simpo = factory("stage: dpo\npref_loss: simpo\nsimpo_gamma: 0.7\npref_beta: 2.0\n");
  expect_values(simpo, {{"train.simpo_gamma", "0.7"},
                        {"train.beta", "2.0"},
                        {"train.cpo_alpha", "none"},
                        {"train.loss_type", "none"}});
  refused("base_model: m\nadapter: lora\nrl: grpo\ntrl:\n  reward_funcs: [rewards.number]\n",
          Tool::kAxolotl, {"functions in Python", "train.rollouts.reward"});
  refused(kFactoryHead + "stage: ppo\n", Tool::kLlamaFactory,
          {"which is not supported", "train.objective"});
  refused(kFactoryHead + "stage: dpo\npref_loss: kto_pair\n", Tool::kLlamaFactory,
          {"`kto_pair`, which is not supported", "or stage to kto"});
  refused(kFactoryHead + "stage: dpo\npref_loss: dpop\n", Tool::kLlamaFactory,
          {"the loss dpop, which is not supported"});
}

TEST_F(PreferenceTest, RewardModels) {
  EXPECT_EQ(value_of(factory("stage: rm\n"), "train.objective"), "\"reward\"");
  const Import axolotl =
      import("base_model: m\nadapter: lora\nreward_model: true\n", Tool::kAxolotl);
  EXPECT_EQ(value_of(axolotl, "train.objective"), "\"reward\"");
  refused("base_model: m\nadapter: lora\nreward_model: true\nrl: dpo\n", Tool::kAxolotl,
          {"name two objectives"});
  const Import pairs = import(
      "base_model: m\nadapter: lora\nreward_model: true\ndatasets:\n  - path: d.jsonl\n    type: "
      "bradley_terry.chat_template\n",
      Tool::kAxolotl);
  for (const char* part : {"\"preference\"", "\"instruction\":\"input\""})
    EXPECT_NE(value_of(pairs, "data.train").find(part), std::string::npos)
        << value_of(pairs, "data.train");
  const Import trl = import(
      "model_name_or_path: m\ndataset_name: d\nuse_peft: true\ncenter_rewards_coefficient: 0.01\n",
      Tool::kTrl);
  expect_values(trl,
                {{"train.objective", "\"reward\""}, {"train.center_rewards_coefficient", "0.01"}});
}

TEST_F(PreferenceTest, LossesOfLlamaFactory) {
  for (const char* loss : {"hinge", "ipo"}) {
    const Import run = factory(fmt::format("stage: dpo\npref_loss: {}\n", loss));
    expect_values(run, {{"train.loss_type", fmt::format("\"{}\"", loss)}});
    expect_lost(run, "pref_loss",
                fmt::format("the sigmoid, whatever this key says; here the loss "
                            "is {}",
                            loss));
  }
  const Import orpo = factory("stage: dpo\npref_loss: orpo\npref_ftx: 0.5\nld_alpha: 0.5\n");
  expect_lost(orpo, "pref_loss", "a mean for each");
  expect_lost(orpo, "pref_ftx", "the weight 1 + 0.5 there");
  expect_lost(orpo, "ld_alpha", "not supported with `train.objective: orpo`");
  expect_values(orpo, {{"train.ld_alpha", "none"}, {"train.loss_type", "none"}});
  const Import plain = factory("stage: dpo\npref_loss: sigmoid\n");
  expect_values(plain, {{"train.loss_type", "\"sigmoid\""}});
  EXPECT_TRUE(plain.not_carried.empty());
}

TEST_F(PreferenceTest, WeightsOfLlamaFactory) {
  const Import ftx = factory("stage: dpo\npref_ftx: 0.5\n");
  expect_values(ftx, {{"train.loss_type", R"({"sigmoid":1.0,"sft":0.5})"}});
  expect_lost(ftx, "pref_ftx", "short answers weigh more");
  expect_values(factory("stage: dpo\npref_bco_weight: 1\npref_ftx: 0.5\npref_loss: hinge\n"),
                {{"train.loss_type", R"({"hinge":0.5,"bco_pair":0.5,"sft":0.5})"}});
  expect_lost(factory("stage: dpo\npref_bco_weight: 3\n"), "pref_bco_weight", "running mean");
  expect_values(factory("stage: dpo\npref_bco_weight: 0\npref_ftx: 0.0\n"),
                {{"train.loss_type", "\"sigmoid\""}});
  expect_values(factory("stage: dpo\npref_loss: simpo\npref_ftx: 0.5\n"),
                {{"train.cpo_alpha", "0.5"}});
  const Import kto = factory("stage: kto\npref_ftx: 0.5\npref_bco_weight: 1\n");
  expect_lost(kto, "pref_ftx", "not added");
  EXPECT_TRUE(has_key(kto.no_meaning, "pref_bco_weight"));
  EXPECT_TRUE(has_key(factory("stage: sft\npref_ftx: 0.5\n").no_meaning, "pref_ftx"));
  refused(kFactoryHead + "stage: dpo\npref_ftx: -1\n", Tool::kLlamaFactory, {"below 0"});
}

TEST_F(PreferenceTest, SmoothingAndLengthsOfLlamaFactory) {
  const Import run = factory("stage: dpo\ndpo_label_smoothing: 0.1\nld_alpha: 0.5\n");
  expect_values(run, {{"train.label_smoothing", "0.1"}, {"train.ld_alpha", "0.5"}});
  expect_lost(run, "ld_alpha", "the trained model alone");
  const Import hinge = factory("stage: dpo\npref_loss: hinge\ndpo_label_smoothing: 0.1\n");
  expect_values(hinge, {{"train.label_smoothing", "none"}});
  EXPECT_TRUE(has_key(hinge.no_meaning, "dpo_label_smoothing"));
  EXPECT_TRUE(has_key(factory("stage: kto\nld_alpha: 0.5\n").no_meaning, "ld_alpha"));
}

TEST_F(PreferenceTest, JudgedAnswersOfLlamaFactory) {
  const auto info = [&](const std::string& entry) {
    write("data/dataset_info.json", R"({"d": {"file_name": "d.jsonl")" + entry + "}}");
  };
  const std::string kto = kFactoryHead + "stage: kto\ndataset: d\n";
  const auto fields = [&] {
    return data_of(kto, Tool::kLlamaFactory)[0].value("fields", nlohmann::ordered_json()).dump();
  };
  info(R"(, "columns": {"prompt": "instruction", "response": "output", "kto_tag": "kto_tag"})");
  EXPECT_EQ(fields(), R"({"label":"kto_tag","input":"","system":""})");
  EXPECT_EQ(why(checked(kto, Tool::kLlamaFactory).not_carried, "dataset"), "");
  info(R"(, "formatting": "sharegpt", "columns": {"messages": "messages", "kto_tag": "label"})");
  EXPECT_EQ(fields(), R"({"conversations":"messages","system":"","tools":""})");
  const Import run = checked(kto, Tool::kLlamaFactory);
  EXPECT_EQ(why(run.not_carried, "dataset"), "");
  const Import sft = checked(kFactoryHead + "stage: sft\ndataset: d\n", Tool::kLlamaFactory);
  expect_lost(sft, "dataset", "columns.kto_tag is not read");
  info(R"(, "columns": {"prompt": "instruction", "response": "output"})");
  expect_lost(checked(kto, Tool::kLlamaFactory), "dataset", "columns.kto_tag is not named");
}

/// They go through the chat template, as Alpaca records do.
TEST_F(PreferenceTest, PairsOfTextsOfLlamaFactory) {
  const std::string dpo = kFactoryHead + "stage: dpo\ndataset: d\n";
  const auto fields_of = [&](const std::string& columns) {
    write("data/dataset_info.json",
          R"({"d": {"file_name": "d.jsonl", "ranking": true, "columns": {)" + columns + "}}}");
    return data_of(dpo, Tool::kLlamaFactory)[0].value("fields", nlohmann::ordered_json()).dump();
  };
  EXPECT_EQ(
      fields_of(R"("prompt": "question", "chosen": "good", "rejected": "bad")"),
      R"({"instruction":"question","chosen":"good","rejected":"bad","input":"","system":""})");
  EXPECT_EQ(fields_of(R"("prompt": "instruction", "query": "more", "system": "system")"),
            R"({"input":"more"})");
  expect_lost(checked(dpo, Tool::kLlamaFactory), "dataset", "one line break");
}

TEST_F(PreferenceTest, PairsOfLlamaFactoryInStageKto) {
  write("data/dataset_info.json",
        R"({"d": {"file_name": "d.jsonl", "ranking": true, "formatting": "sharegpt"}})");
  const Import run = checked(kFactoryHead + "stage: kto\ndataset: d\n", Tool::kLlamaFactory);
  EXPECT_NE(value_of(run, "data.train").find(R"("format":"preference")"), std::string::npos);
  expect_lost(run, "dataset", "the chosen answer alone");
}

// ---- Reference models

TEST_F(PreferenceTest, ReferencesOfTrlAndAxolotl) {
  const Values online = {{"train.reference_logps", "none"}, {"train.reference", "none"}};
  const Values precomputed = {{"train.reference_logps", "\"precomputed\""},
                              {"train.reference", "none"}};
  expect_values(trl("loss_type: ipo\nprecompute_ref_log_probs: true\n"), precomputed);
  expect_values(trl("loss_type: ipo\nprecompute_ref_log_probs: false\n"), online);
  for (const char* loss : {"simpo", "kto"}) {
    const Import run = trl(fmt::format("loss_type: {}\nprecompute_ref_log_probs: true\n", loss));
    expect_values(run, online);
    EXPECT_TRUE(has_key(run.no_meaning, "precompute_ref_log_probs")) << loss;
  }
  expect_values(axolotl("rl: dpo\nprecompute_ref_log_probs: true\n"), precomputed);
  const Import kto = axolotl("rl: kto\nprecompute_ref_log_probs: true\n");
  expect_values(kto, online);
  EXPECT_TRUE(has_key(kto.no_meaning, "precompute_ref_log_probs"));
  const std::string own = "rl_adapter_ref_model: true\n";
  expect_values(axolotl("rl: dpo\nlora_model_dir: sft\n" + own),
                {{"train.reference", "\"sft\""}, {"tuning.lora.init_from", "none"}});
  for (const std::string& keys :
       {"rl: dpo\n" + own, "rl: simpo\nlora_model_dir: sft\n" + own,
        std::string("rl: kto\nlora_model_dir: sft\n") + "rl_adapter_ref_model: false\n"}) {
    const Import run = axolotl(keys);
    expect_values(run, online);
    EXPECT_TRUE(has_key(run.no_meaning, "rl_adapter_ref_model")) << keys;
  }
}

/// LLaMA-Factory's reference is the model with adapters off.
TEST_F(PreferenceTest, ReferencesOfLlamaFactory) {
  const auto reference = [&](const std::string& keys) {
    return value_of(factory(keys), "train.reference");
  };
  EXPECT_EQ(reference("stage: dpo\n"), "none");
  EXPECT_EQ(reference("stage: dpo\nref_model: other\n"), "\"other\"");
  EXPECT_EQ(reference("stage: kto\nref_model: m\n"), "\"base\"");
  EXPECT_EQ(reference("stage: dpo\nref_model: m\nref_model_adapters: sft\n"), "\"sft\"");
  const Import start = factory("stage: dpo\nadapter_name_or_path: sft\n");
  expect_values(start, {{"tuning.lora.init_from", "\"sft\""}, {"train.reference", "\"base\""}});
  EXPECT_EQ(reference("stage: dpo\nadapter_name_or_path: sft\nref_model: other\n"), "\"other\"");
  for (const char* keys : {"stage: sft\nadapter_name_or_path: sft\n",
                           "stage: dpo\npref_loss: orpo\nref_model: other\n",
                           "stage: dpo\nadapter_name_or_path: sft\ncreate_new_adapter: true\n"})
    EXPECT_EQ(reference(keys), "none") << keys;
  const Import other = factory("stage: dpo\nref_model: other\nref_model_adapters: sft\n");
  expect_values(other, {{"train.reference", "none"}});
  expect_lost(other, "ref_model", "merge them");
  expect_lost(factory("stage: dpo\nref_model: m\nref_model_adapters: a,b\n"), "ref_model_adapters",
              "takes one adapter");
  EXPECT_TRUE(
      has_key(factory("stage: dpo\nref_model_adapters: sft\n").no_meaning, "ref_model_adapters"));
  const Import full = checked(
      "model_name_or_path: m\nfinetuning_type: full\ncutoff_len: 8\nstage: dpo\nref_model: m\n",
      Tool::kLlamaFactory);
  expect_values(full, {{"train.reference", "none"}});
  EXPECT_TRUE(has_key(full.no_meaning, "ref_model"));
}

TEST_F(PreferenceTest, ReferencesOfTorchtune) {
  const auto run = [&](const std::string& folder) {
    return checked(
        "checkpointer: {checkpoint_dir: m}\ntokenizer: {max_seq_len: 8}\n"
        "model: {_component_: torchtune.models.llama3.llama3_8b}\n"
        "dataset: {_component_: torchtune.datasets.preference_dataset, source: d}\n"
        "loss: {_component_: torchtune.rlhf.loss.DPOLoss}\n"
        "ref_checkpointer: {_component_: a.FullModelHFCheckpointer, checkpoint_dir: " +
            folder + "}\n",
        Tool::kTorchtune);
  };
  expect_values(run("other"), {{"train.reference", "\"other\""}});
  expect_values(run("m"), {{"train.reference", "none"}});
  EXPECT_TRUE(has_key(run("m").no_meaning, "ref_checkpointer.checkpoint_dir"));
}

// ---- torchtune

TEST_F(PreferenceTest, LossesOfTorchtune) {
  const auto loss = [&](const std::string& keys) {
    return torchtune("{_component_: torchtune.rlhf.loss." + keys + "}");
  };
  expect_values(
      loss("DPOLoss, beta: 0.2, label_smoothing: 0.1"),
      {{"train.objective", "\"dpo\""}, {"train.beta", "0.2"}, {"train.label_smoothing", "0.1"}});
  expect_values(loss("DPOLoss, label_smoothing: 0"),
                {{"train.beta", "none"}, {"train.label_smoothing", "none"}});
  expect_values(
      loss("RSOLoss, gamma: 0.2"),
      {{"train.objective", "\"dpo\""}, {"train.loss_type", "\"hinge\""}, {"train.beta", "0.2"}});
  expect_values(loss("SimPOLoss, gamma: 0.7"), {{"train.objective", "\"simpo\""},
                                                {"train.beta", "2.0"},
                                                {"train.simpo_gamma", "0.7"},
                                                {"train.cpo_alpha", "none"}});
  expect_values(loss("SimPOLoss, beta: 2.5, label_smoothing: 0.1"),
                {{"train.beta", "2.5"}, {"train.label_smoothing", "0.1"}});
  const Import ipo = loss("IPOLoss, tau: 0.2");
  expect_values(ipo, {{"train.objective", "\"ipo\""}, {"train.beta", "0.2"}});
  expect_lost(ipo, "loss", "sums of log-probabilities");
  refused("loss: {_component_: torchtune.rlhf.loss.PPOLoss}\n", Tool::kTorchtune,
          {"`loss` is PPOLoss, which is not supported", "train.objective"});
}

}  // namespace
}  // namespace sftrun::foreign
