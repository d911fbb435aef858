#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "file_builders.h"
#include "sftrun/core/file.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/checkpoint.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;
using test::expect_error;

const char* const kQ = "model.layers.0.self_attn.q_proj";

spec::ArchSpec small_arch() {
  return spec::ArchSpec::from_hf_config({{"model_type", "llama"},
                                         {"vocab_size", 8},
                                         {"hidden_size", 4},
                                         {"intermediate_size", 6},
                                         {"num_hidden_layers", 1},
                                         {"num_attention_heads", 2},
                                         {"num_key_value_heads", 1}},
                                        "config.json");
}

/// As PEFT 0.21 writes it.
json peft_config() {
  return json::parse(R"({
    "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
    "base_model_name_or_path": "some/model", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
    "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
    "init_lora_weights": true, "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
    "loftq_config": {}, "lora_alpha": 16, "lora_bias": false, "lora_dropout": 0.05, "megatron_config": null,
    "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA", "peft_version": "0.21.2",
    "qalora_group_size": 16, "r": 2, "rank_pattern": {}, "revision": null, "target_modules": ["v_proj", "q_proj"],
    "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false,
    "use_qalora": false, "use_rslora": false})");
}

AdapterConfig load_config(const json& config) {
  const test::TemporaryDirectory directory;
  test::write_file(directory / "adapter_config.json", config.dump());
  return AdapterConfig::load(directory.path());
}

TEST(AdapterConfig, ReadsPeftsOwn) {
  const AdapterConfig config = load_config(peft_config());
  EXPECT_EQ(config.base_model_name_or_path, "some/model");
  EXPECT_EQ(config.lora.r, 2);
  EXPECT_EQ(config.lora.alpha, 16.0);
  EXPECT_EQ(config.lora.dropout, 0.05);
  EXPECT_EQ(config.lora.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_FALSE(config.lora.target_pattern || config.lora.rslora);
  EXPECT_TRUE(config.lora.modules_to_save.empty());
  EXPECT_EQ(config.task_type, "CAUSAL_LM");
}

TEST(AdapterConfig, ExpressionsAreBounded) {
  const std::string nested = std::string(20'000, '(') + std::string(20'000, ')');
  json config = peft_config();
  config["target_modules"] = nested;
  test::expect_error([&] { load_config(config); },
                     {"is not a regular expression", "adapter_config.json: target_modules"});
  config = peft_config();
  config["rank_pattern"] = {{nested, 4}};
  test::expect_error([&] { load_config(config); },
                     {"is not a regular expression", "adapter_config.json: rank_pattern"});
  config["rank_pattern"] = {{"(?:[a-z_.]|[a-z_.]|[a-z_.])*\\d\\d\\d", 4}};
  const spec::LoraSpec lora = load_config(config).lora;
  test::expect_error([&] { lora.r_of("model.layers.0.self_attn.q_proj"); },
                     {"takes too long", "adapter_config.json: rank_pattern"});
}

TEST(AdapterConfig, ReadsPatternsAndAllLinear) {
  json config = peft_config();
  config["target_modules"] = ".*self_attn.(q|v)_proj";
  EXPECT_TRUE(load_config(config).lora.target_pattern);
  EXPECT_EQ(load_config(config).to_json()["target_modules"], config["target_modules"]);
  config["target_modules"] = "all-linear";
  EXPECT_FALSE(load_config(config).lora.target_pattern);
  EXPECT_EQ(load_config(config).lora.target_modules, std::vector<std::string>{"all-linear"});
}

TEST(AdapterConfig, ComesBackEqual) {
  json config = peft_config();
  config["use_rslora"] = true;
  config["modules_to_save"] = {"lm_head"};
  const json written = load_config(config).to_json();
  EXPECT_EQ(json(load_config(written).to_json()), written);
  EXPECT_EQ(written["lora_alpha"].dump(), "16");
  EXPECT_EQ(written["modules_to_save"], config["modules_to_save"]);
  EXPECT_EQ(written["use_rslora"], true);
}

TEST(AdapterConfig, RefusesVariantsByName) {
  const std::vector<std::tuple<const char*, json, std::string>> cases = {
      {"peft_type", "IA3", "the adapter type \"IA3\" is not supported"},
      {"peft_type", nullptr, "`peft_type` must be \"LORA\""},
      {"bias", "all", "`bias: all`"},
      {"fan_in_fan_out", true, "`fan_in_fan_out` is not supported"},
      {"init_lora_weights", "pissa_niter_4",
       "`init_lora_weights: pissa_niter_4`, which changes the base model, is not supported"},
      {"layers_to_transform", json::array({"0"}), "`layers_to_transform` must be a list of the"},
      {"exclude_modules", json::array({3}), "`exclude_modules` must be a list of names"},
      {"use_qalora", true, "`use_qalora: true` is not supported"},
      {"lora_bias", true, "`lora_bias: true` is not supported"},
      {"a_key_of_the_future", 3, "`a_key_of_the_future: 3` is not supported"},
      {"r", 0, "`r` must be a positive integer; it is 0"},
      {"r", "8", "`r` must be a positive integer"},
      {"lora_alpha", "x", "`lora_alpha` must be a number"},
      {"lora_dropout", 1.0, "`lora_dropout` must be at least 0 and less than 1"},
      {"target_modules", nullptr, "`target_modules` must be a list of names"},
      {"target_modules", json::array({3}), "`target_modules` must be a list of names"},
      {"target_modules", json::array(), "`target_modules` must be a non-empty list"},
  };
  for (const auto& [key, value, part] : cases) {
    SCOPED_TRACE(key);
    json config = peft_config();
    config[key] = value;
    expect_error([&] { load_config(config); }, {part, "adapter_config.json"});
  }
  const test::TemporaryDirectory empty;
  expect_error([&] { AdapterConfig::load(empty.path()); }, {"no adapter_config.json"});
}

/// As PEFT's check_target_module_exists decides.
TEST(AdapterConfig, LeavesOutModulesAsPeftDoes) {
  const std::string q = "model.layers.3.self_attn.q_proj", v = "model.layers.3.self_attn.v_proj";
  const auto left_out = [](const char* key, const json& value, const json& pattern = nullptr) {
    json config = peft_config();
    config[key] = value;
    config["layers_pattern"] = pattern;
    return load_config(config).left_out;
  };
  EXPECT_TRUE(left_out("exclude_modules", {"v_proj"}).covers(v));
  EXPECT_FALSE(left_out("exclude_modules", {"v_proj"}).covers(q));
  EXPECT_FALSE(left_out("exclude_modules", {"proj"}).covers(q));  // whole words
  EXPECT_TRUE(left_out("exclude_modules", ".*layers\\.3\\..*").covers(q));
  EXPECT_FALSE(left_out("exclude_modules", "v_proj").covers(v));  // the whole name
  EXPECT_FALSE(left_out("layers_to_transform", {3}).covers(q));
  EXPECT_FALSE(left_out("layers_to_transform", 3).covers(q));
  EXPECT_TRUE(left_out("layers_to_transform", {1, 2}).covers(q));
  EXPECT_FALSE(left_out("layers_to_transform", {3}, "layers").covers(q));
  EXPECT_FALSE(left_out("layers_to_transform", {3}, {"blocks", "layers"}).covers(q));
  EXPECT_TRUE(left_out("layers_to_transform", {3}, "blocks").covers(q));
  EXPECT_FALSE(left_out("layers_to_transform", {3}, "lay.*").covers(q));  // an expression
  EXPECT_TRUE(left_out("layers_to_transform", {3}).covers("lm_head"));
  EXPECT_TRUE(left_out("layers_to_transform", {3}).covers("layers.3.self_attn.q_proj"));
  json named = peft_config();
  named["layers_to_transform"] = {3};
  named["target_modules"] = {"q_proj", "lm_head"};  // a whole name is always meant
  EXPECT_FALSE(load_config(named).left_out.covers("lm_head"));
  EXPECT_TRUE(left_out("exclude_modules", json::array()).is_empty());
  EXPECT_TRUE(left_out("layers_to_transform", json::array()).is_empty());
}

TEST(AdapterConfig, TensorNamesArePefts) {
  EXPECT_EQ(lora_a_name(kQ), "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(lora_b_name(kQ), "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight");
}

TensorToWrite filled(const std::string& name, const std::vector<int64_t>& shape,
                     float value = 0.5F) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return {name, DType::kF32, shape,
          [=](void* out) { std::fill_n(static_cast<float*>(out), count, value); }};
}

class Adapter : public testing::Test {
 protected:
  void save() { write_adapter(directory_.path(), config_, tensors_); }
  AdapterTensors load() {
    return load_adapter(directory_.path(), AdapterConfig::load(directory_.path()), small_arch());
  }
  void expect_refused(std::initializer_list<std::string> parts) {
    save();
    expect_error([&] { load(); }, parts);
  }

  test::TemporaryDirectory directory_;
  AdapterConfig config_{.lora = {.r = 2, .alpha = 8, .target_modules = {"q_proj", "k_proj"}}};
  std::vector<TensorToWrite> tensors_ = {filled(lora_a_name(kQ), {2, 4}, 0.25F),
                                         filled(lora_b_name(kQ), {4, 2})};
};

TEST_F(Adapter, ComesBackEqual) {
  const std::string k = "model.layers.0.self_attn.k_proj";
  TensorToWrite half{lora_a_name(k), DType::kBF16, {2, 4}, [](void* out) {
                       for (int i = 0; i < 8; ++i)
                         static_cast<uint16_t*>(out)[i] = f32_to_bf16(1.5F);
                     }};
  tensors_.push_back(half);
  tensors_.push_back(filled(lora_b_name(k), {2, 2}));
  tensors_.push_back(filled("base_model.model.lm_head.weight", {8, 4}, 3.0F));
  config_.lora.modules_to_save = {"lm_head"};
  save();
  const AdapterTensors adapter = load();
  ASSERT_EQ(adapter.lora.size(), 2U);
  EXPECT_EQ(adapter.lora.at(kQ).a, std::vector<float>(8, 0.25F));
  EXPECT_EQ(adapter.lora.at(kQ).b, std::vector<float>(8, 0.5F));
  EXPECT_EQ(adapter.lora.at(k).a, std::vector<float>(8, 1.5F));
  EXPECT_EQ(adapter.lora.at(k).in_features, 4);
  EXPECT_EQ(adapter.lora.at(k).out_features, 2);
  EXPECT_EQ(adapter.saved.at("lm_head.weight"), std::vector<float>(32, 3.0F));
}

TEST_F(Adapter, Magnitudes) {
  config_.lora.dora = true;
  expect_refused({lora_a_name(kQ), "has no matching lora_magnitude_vector"});
  tensors_.push_back(filled(magnitude_name(kQ), {4}, 1.25F));
  save();
  EXPECT_EQ(load().lora.at(kQ).magnitude, std::vector<float>(4, 1.25F));
  EXPECT_TRUE(AdapterConfig::load(directory_.path()).lora.dora);
  config_.lora.dora = false;
  expect_refused(
      {lora_a_name(kQ), "has a matching lora_magnitude_vector, although `use_dora` is false"});
  config_.lora.dora = true;
  tensors_.back() = filled(magnitude_name(kQ), {3});
  expect_refused({magnitude_name(kQ), "has the shape [3], expected [4]"});
}

TEST_F(Adapter, WholeModules) {
  config_.lora.modules_to_save = {"_proj", "norm"};  // within words, as peft takes them
  tensors_.push_back(filled("base_model.model.model.norm.modules_to_save.default.weight", {4}, 2));
  tensors_.push_back(filled("base_model.model.model.layers.0.self_attn.o_proj.weight", {4, 4}, 3));
  save();
  const AdapterTensors adapter = load();
  EXPECT_EQ(adapter.saved.at("model.norm.weight"), std::vector<float>(4, 2.0F));
  EXPECT_EQ(adapter.saved.at("model.layers.0.self_attn.o_proj.weight"), std::vector<float>(16, 3));
}

TEST_F(Adapter, EmbeddingAndHead) {
  const std::string embedding = "model.embed_tokens";
  const LoraNames names = embedding_lora_names(embedding);
  EXPECT_EQ(names.a, "base_model.model.model.embed_tokens.lora_embedding_A");
  config_.lora.target_modules = {"q_proj", "embed_tokens", "lm_head"};
  config_.lora.rank_pattern = {{"embed_tokens", 3}};
  tensors_.push_back(filled(names.a, {3, 8}, 2));
  expect_refused({names.a, "has no matching lora_B"});
  tensors_.push_back(filled(names.b, {4, 3}));
  tensors_.push_back(filled(lora_a_name("lm_head"), {2, 4}));
  tensors_.push_back(filled(lora_b_name("lm_head"), {8, 2}));
  // As PEFT saves the base's own beside them.
  for (const char* module : {"model.embed_tokens", "lm_head"}) {
    tensors_.push_back(
        filled(std::string("base_model.model.") + module + ".base_layer.weight", {8, 4}));
  }
  save();
  const AdapterTensors adapter = load();
  const LoraPair &of_embedding = adapter.lora.at(embedding), &of_head = adapter.lora.at("lm_head");
  EXPECT_TRUE(of_embedding.of_embedding && !of_head.of_embedding && adapter.saved.empty());
  EXPECT_EQ(of_embedding.in_features, 8);
  EXPECT_EQ(of_embedding.r, 3);
  EXPECT_EQ(of_embedding.a, std::vector<float>(24, 2.0F));
  EXPECT_EQ(of_head.out_features, 8);
  tensors_.back() = filled("base_model.model.lm_head.base_layer.weight", {9, 4});
  expect_refused({"lm_head.base_layer.weight", "[9, 4]", "vocabulary was resized"});
}

TEST_F(Adapter, MagnitudesOfAnEmbeddingAreItsChannels) {
  const LoraNames names = embedding_lora_names("model.embed_tokens");
  config_.lora.dora = true;
  tensors_ = {filled(names.a, {2, 8}), filled(names.b, {4, 2}),
              filled(magnitude_name("model.embed_tokens"), {4}, 3)};
  save();
  EXPECT_EQ(load().lora.at("model.embed_tokens").magnitude, std::vector<float>(4, 3.0F));
}

TEST_F(Adapter, RanksOfTheirOwn) {
  config_.lora.rank_pattern = {{"q_proj", 3}};
  config_.lora.alpha_pattern = {{"q_proj", 6}};
  expect_refused({lora_a_name(kQ), "has the shape [2, 4], expected [3, 4] with r 3"});
  tensors_ = {filled(lora_a_name(kQ), {3, 4}), filled(lora_b_name(kQ), {4, 3})};
  save();
  EXPECT_EQ(load().lora.at(kQ).r, 3);
  EXPECT_EQ(load().lora.at(kQ).scale, 2);
}

TEST_F(Adapter, MissingHalf) {
  tensors_.pop_back();
  expect_refused({"tensor `" + lora_a_name(kQ) + "` has no matching lora_B"});
  tensors_ = {filled(lora_b_name(kQ), {4, 2})};
  expect_refused({"tensor `" + lora_b_name(kQ) + "` has no matching lora_A"});
}

TEST_F(Adapter, OtherRankThanConfigured) {
  config_.lora.r = 4;
  expect_refused({lora_a_name(kQ), "has the shape [2, 4], expected [4, 4] with r 4"});
}

TEST_F(Adapter, OfAnotherModel) {
  tensors_ = {filled(lora_a_name(kQ), {2, 6}), filled(lora_b_name(kQ), {4, 2})};
  expect_refused({lora_a_name(kQ), "has the shape [2, 6], expected [2, 4]"});
  const std::string other = "model.layers.1.self_attn.q_proj";
  tensors_ = {filled(lora_a_name(other), {2, 4}), filled(lora_b_name(other), {4, 2})};
  expect_refused(
      {"not a linear layer of this model", "the nearest is `model.layers.0.self_attn.q_proj`"});
  tensors_ = {filled(lora_a_name("model.norm"), {2, 4})};
  expect_refused({"`model.norm`, which is not a linear layer"});
}

TEST_F(Adapter, TargetsAreTheModulesWithTensors) {
  const std::string k = "model.layers.0.self_attn.k_proj";
  save();
  AdapterConfig config = load_adapter_config(directory_.path(), small_arch());
  EXPECT_EQ(config.lora.target_modules, std::vector<std::string>{kQ});
  EXPECT_EQ(config.without_tensors, std::vector<std::string>{k});
  EXPECT_EQ(load_named_targets(directory_.path(), small_arch()).lora.target_modules,
            (std::vector<std::string>{"k_proj", "q_proj"}));
  EXPECT_EQ(load_adapter(directory_.path(), config, small_arch()).lora.size(), 1U);
  tensors_.push_back(filled(lora_a_name(k), {2, 4}));
  tensors_.push_back(filled(lora_b_name(k), {2, 2}));
  save();
  config = load_adapter_config(directory_.path(), small_arch());
  EXPECT_EQ(config.lora.target_modules, (std::vector<std::string>{"k_proj", "q_proj"}));
  EXPECT_TRUE(config.without_tensors.empty());
}

/// PEFT takes the weight of a linear layer as a parameter, too, and stores the same tensors.
TEST_F(Adapter, ParametersOfLinearLayersAreTheirModules) {
  config_.lora.target_modules.clear();
  config_.lora.target_parameters = {"self_attn.q_proj.weight"};
  save();
  const AdapterConfig config = load_adapter_config(directory_.path(), small_arch());
  EXPECT_EQ(config.lora.target_modules, std::vector<std::string>{kQ});
  EXPECT_TRUE(config.lora.target_parameters.empty());
  EXPECT_EQ(load_adapter(directory_.path(), config, small_arch()).lora.size(), 1U);
}

/// PEFT matches patterns against the name of the parameter.
TEST_F(Adapter, ParametersOfLinearLayersHaveTheSizesOfTheirPatterns) {
  config_.lora.target_modules.clear();
  config_.lora.target_parameters = {"self_attn.q_proj.weight"};
  config_.lora.rank_pattern = {{spec::NameEnding("q_proj"), 7}};
  config_.lora.alpha_pattern = {{spec::NameEnding("q_proj.weight"), 5}};
  const auto r = config_.lora.r;
  save();
  const AdapterConfig config = load_adapter_config(directory_.path(), small_arch());
  EXPECT_EQ(config.lora.r_of(kQ), r);
  EXPECT_EQ(config.lora.scale_of(kQ), 5.0 / static_cast<double>(r));
  EXPECT_EQ(load_adapter(directory_.path(), config, small_arch()).lora.at(kQ).r, r);
}

TEST_F(Adapter, ParametersOfLinearLayersStandBesideAPattern) {
  config_.lora.target_parameters = {"self_attn.q_proj.weight"};
  config_.lora.target_modules.clear();
  config_.lora.target_pattern = spec::target_pattern(".*\\.nothing");
  save();
  const AdapterConfig config = load_adapter_config(directory_.path(), small_arch());
  EXPECT_TRUE(config.lora.target_parameters.empty());
  EXPECT_EQ(load_adapter(directory_.path(), config, small_arch()).lora.size(), 1U);
}

TEST_F(Adapter, TensorsOfModulesThatAreLeftOutAreRefused) {
  save();
  json config = config_.to_json();
  config["exclude_modules"] = {"q_proj"};
  test::write_file(directory_ / "adapter_config.json", config.dump());
  expect_error([&] { load(); }, {lora_a_name(kQ), "leaves out", "must belong together"});
  config["exclude_modules"] = {"k_proj"};
  config["layers_to_transform"] = {0};
  test::write_file(directory_ / "adapter_config.json", config.dump());
  EXPECT_EQ(load().lora.size(), 1U);
}

/// The state dictionary of a PeftModel, which save_pretrained did not write.
TEST_F(Adapter, NamesWithTheAdaptersName) {
  const std::string module = std::string("base_model.model.") + kQ;
  config_.lora.dora = true;
  tensors_ = {filled(module + ".lora_A.default.weight", {2, 4}, 0.25F),
              filled(module + ".lora_B.default.weight", {4, 2}),
              filled(module + ".lora_magnitude_vector.default.weight", {4}, 2)};
  save();
  EXPECT_EQ(load().lora.at(kQ).a, std::vector<float>(8, 0.25F));
  EXPECT_EQ(load().lora.at(kQ).magnitude, std::vector<float>(4, 2.0F));
  EXPECT_EQ(load_adapter_config(directory_.path(), small_arch()).lora.target_modules,
            std::vector<std::string>{kQ});
  tensors_.push_back(filled(lora_a_name(kQ), {2, 4}));
  expect_refused({lora_a_name(kQ), "appears twice"});
  tensors_ = {filled(module + ".lora_A.mine.weight", {2, 4}),
              filled(module + ".lora_B.mine.weight", {4, 2})};
  expect_refused({"has the name of an adapter in it, `mine`", "save_pretrained"});
}

TEST_F(Adapter, NotFinite) {
  tensors_[1] = filled(lora_b_name(kQ), {4, 2}, std::numeric_limits<float>::quiet_NaN());
  expect_refused({lora_b_name(kQ), "has NaN or infinite values"});
}

TEST_F(Adapter, UnknownTensors) {
  tensors_.push_back(
      filled("base_model.model.model.layers.0.self_attn.q_proj.lora_bias_of_the_future", {4}));
  expect_refused({"lora_bias_of_the_future", "an adapter type that is not supported"});
  tensors_.back() = filled("base_model.model.model.norm.weight", {4});
  expect_refused({"neither a LoRA tensor nor part of `modules_to_save`"});
  tensors_.back() = filled("lm_head.weight", {8, 4});
  expect_refused({"does not have a name of a PEFT adapter tensor"});
}

TEST_F(Adapter, Empty) {
  tensors_.clear();
  expect_refused({"the adapter has no tensors"});
  std::filesystem::remove(directory_ / "adapter_model.safetensors");
  test::write_file(directory_ / "adapter_model.bin", "");
  expect_error([&] { load(); },
               {"no adapter_model.safetensors", "adapter_model.bin is not supported"});
}

/// Of 3 experts, hidden 4 and inner 5, with rank 2.
spec::ArchSpec small_mixture(const char* family) {
  return spec::ArchSpec::from_hf_config({{"model_type", family},
                                         {"vocab_size", 8},
                                         {"hidden_size", 4},
                                         {"intermediate_size", 5},
                                         {"moe_intermediate_size", 5},
                                         {"num_hidden_layers", 1},
                                         {"num_attention_heads", 2},
                                         {"num_key_value_heads", 1},
                                         {"num_local_experts", 3},
                                         {"num_experts_per_tok", 1}},
                                        "config.json");
}

/// Values that tell their place: first, first + 1, …
TensorToWrite counting(const std::string& name, const std::vector<int64_t>& shape, float first) {
  return {name, DType::kF32, shape, [=](void* out) {
            for (int64_t i = 0; i < shape[0] * shape[1]; ++i)
              static_cast<float*>(out)[i] = first + static_cast<float>(i);
          }};
}

class OldExperts : public testing::Test {
 protected:
  /// As PEFT wrote them when each matrix was a module.
  void add_experts(const std::string& layer, const std::array<const char*, 3>& matrices) {
    for (int expert = 0; expert < 3; ++expert) {
      const std::string module = fmt::format("{}.experts.{}.", layer, expert);
      for (size_t m = 0; m < matrices.size(); ++m) {
        const float first = 1000.0F * static_cast<float>(expert) + 100.0F * static_cast<float>(m);
        const bool is_down = m == 2;
        tensors_.push_back(
            counting(lora_a_name(module + matrices[m]), {2, is_down ? 5 : 4}, first + 1));
        tensors_.push_back(
            counting(lora_b_name(module + matrices[m]), {is_down ? 4 : 5, 2}, first + 51));
      }
    }
  }
  void save() { write_adapter(directory_.path(), config_, tensors_); }

  test::TemporaryDirectory directory_;
  AdapterConfig config_{.lora = {.r = 2, .alpha = 8, .dropout = 0.1}};
  std::vector<TensorToWrite> tensors_;
};

// Column c of row o of an expert's B, in PEFT's order.
float at_b(const LoraPair& pair, int64_t expert, int64_t o, int64_t c) {
  return pair.b[static_cast<size_t>((o * pair.r + c) * pair.num_experts + expert)];
}

void expect_block_diagonal(const LoraPair& pair) {
  EXPECT_EQ(pair.r, 4);
  EXPECT_EQ(pair.scale, 4);
  for (int64_t e = 0; e < 3; ++e) {
    for (int64_t i = 0; i < 4; ++i) {
      const float first = 1000.0F * static_cast<float>(e) + 100.0F * static_cast<float>(i / 2);
      for (int64_t k = 0; k < 4; ++k) {
        EXPECT_EQ(pair.a[static_cast<size_t>((e * 4 + i) * 4 + k)],
                  first + 1 + static_cast<float>((i % 2) * 4 + k));
      }
      for (int64_t o = 0; o < 10; ++o) {
        const bool own = o / 5 == i / 2;
        EXPECT_EQ(at_b(pair, e, o, i),
                  own ? first + 51 + static_cast<float>((o % 5) * 2 + i % 2) : 0);
      }
    }
  }
}

TEST_F(OldExperts, BecomeThoseOfALayer) {
  const std::string layer = "model.layers.0.";
  for (const auto& [family, prefix, matrices] :
       {std::tuple{"mixtral", "block_sparse_moe", std::array{"w1", "w3", "w2"}},
        std::tuple{"qwen3_moe", "mlp", std::array{"gate_proj", "up_proj", "down_proj"}}}) {
    SCOPED_TRACE(family);
    tensors_.clear();
    add_experts(layer + prefix, matrices);
    tensors_.push_back(counting(lora_a_name(layer + prefix + ".gate"), {2, 4}, 1));
    tensors_.push_back(counting(lora_b_name(layer + prefix + ".gate"), {3, 2}, 1));
    tensors_.push_back(filled(lora_a_name(kQ), {2, 4}));
    tensors_.push_back(filled(lora_b_name(kQ), {4, 2}));
    config_.lora.target_modules = {"gate", matrices[0], matrices[1], matrices[2], "q_proj"};
    const spec::ArchSpec arch = small_mixture(family);
    tensors_[tensors_.size() - 1] = filled(lora_b_name(kQ), {arch.num_heads * arch.head_dim, 2});
    save();
    const AdapterConfig config = load_adapter_config(directory_.path(), arch);
    EXPECT_EQ(config.lora.target_modules, std::vector<std::string>{"q_proj"});
    EXPECT_EQ(config.lora.target_parameters,
              (std::vector<std::string>{"mlp.experts.down_proj", "mlp.experts.gate_up_proj",
                                        "mlp.gate.weight"}));
    EXPECT_EQ(config.lora.r_of(layer + "mlp.experts.gate_up_proj"), 4);
    EXPECT_EQ(config.lora.scale_of(layer + "mlp.experts.gate_up_proj"), 4);
    EXPECT_EQ(config.lora.dropout, 0);
    const AdapterTensors adapter = load_adapter(directory_.path(), config, arch);
    ASSERT_EQ(adapter.lora.size(), 4U);
    expect_block_diagonal(adapter.lora.at(layer + "mlp.experts.gate_up_proj"));
    const LoraPair& down = adapter.lora.at(layer + "mlp.experts.down_proj");
    EXPECT_EQ(down.r, 2);
    EXPECT_EQ(down.a[static_cast<size_t>(2 * 2 * 5 + 1)], 2202);  // the second value of expert 2
    EXPECT_EQ(at_b(down, 1, 3, 0), 1257);
    EXPECT_EQ(adapter.lora.at(layer + "mlp.gate").out_features, 3);
  }
}

TEST_F(OldExperts, MustBeThere) {
  config_.lora.target_modules = {"w1", "w2", "w3"};
  add_experts("model.layers.0.block_sparse_moe", {"w1", "w3", "w2"});
  std::erase_if(tensors_, [](const TensorToWrite& tensor) {
    return tensor.name.find(".1.w3.") != std::string::npos;
  });
  save();
  const spec::ArchSpec arch = small_mixture("mixtral");
  expect_error(
      [&] { load_adapter(directory_.path(), load_adapter_config(directory_.path(), arch), arch); },
      {"model.layers.0.mlp.experts.gate_up_proj", "has 10 of 12 expected", "all experts"});
}

// What PEFT 0.21 makes of a list of targets that names experts' matrices.
TEST(AdapterConfig, ReadsTheRankOfGateAndUpTogether) {
  json config = peft_config();
  config["target_parameters"] = {"gate_up_proj", "down_proj"};
  config["rank_pattern"] = {{".*\\.gate_up_proj", 4}};
  config["alpha_pattern"] = {{".*\\.gate_up_proj", 32}};
  const AdapterConfig read = load_config(config);
  EXPECT_EQ(read.lora.r_of("model.layers.0.mlp.experts.gate_up_proj"), 4);
  EXPECT_EQ(read.lora.scale_of("model.layers.0.mlp.experts.gate_up_proj"), 8);
  EXPECT_EQ(read.lora.r_of("model.layers.0.mlp.experts.down_proj"), read.lora.r);
  EXPECT_EQ(read.to_json()["rank_pattern"], config["rank_pattern"]);
  EXPECT_EQ(load_config(read.to_json()).to_json(), read.to_json());
}

TEST(AdapterConfig, ReadsPatternsInTheirOrder) {
  json config = peft_config();
  test::TemporaryDirectory directory;
  const auto read = [&](const std::string& ranks, const std::string& alphas) {
    std::string text = config.dump();
    text.pop_back();
    write_file_atomically(
        directory / "adapter_config.json",
        fmt::format("{}, \"rank_pattern\": {}, \"alpha_pattern\": {}}}", text, ranks, alphas));
    return AdapterConfig::load(directory.path());
  };
  config.erase("rank_pattern");
  config.erase("alpha_pattern");
  const AdapterConfig both = read(R"({"layers.1.self_attn.q_proj": 3, "[qk]_proj": 5})",
                                  R"({"v_proj": 1.5, "^model.layers.0.self_attn.q_proj": 2})");
  EXPECT_EQ(both.lora.r_of("model.layers.1.self_attn.q_proj"), 3);
  EXPECT_EQ(both.lora.r_of("model.layers.0.self_attn.q_proj"), 5);
  EXPECT_EQ(both.lora.scale_of("model.layers.0.self_attn.q_proj"), 2.0 / 5);
  EXPECT_EQ(both.lora.scale_of("model.layers.0.self_attn.v_proj"),
            1.5 / static_cast<double>(both.lora.r));
  const std::string written = both.to_json().dump();
  EXPECT_NE(written.find(R"({"layers.1.self_attn.q_proj":3,"[qk]_proj":5})"), std::string::npos);
  EXPECT_NE(written.find(R"({"v_proj":1.5,"^model.layers.0.self_attn.q_proj":2})"),
            std::string::npos);
  expect_error([&] { read(R"({"q_proj": 0})", "null"); },
               {"`rank_pattern` must be an object of positive"});
  expect_error([&] { read(R"({"q_proj": 2.5})", "null"); },
               {"`rank_pattern` must be an object of positive"});
  expect_error([&] { read("[3]", "null"); },
               {"`rank_pattern` must be an object with names as keys"});
  expect_error([&] { read("{}", R"({"q_proj": "x"})"); },
               {"`alpha_pattern` must be an object of numbers"});
  expect_error([&] { read("{}", R"({"(q": 2})"); },
               {"`(q` is not a regular expression", "adapter_config.json: alpha_pattern"});
}

// Layers of the same names and sizes do not make it a model of the same family.
TEST(AdapterFamily, AnotherIsRefused) {
  const std::filesystem::path families = std::filesystem::path(SFTRUN_TEST_DATA) / "families";
  const spec::ArchSpec llama = Checkpoint::open(families / "llama")->arch();
  AdapterConfig config;
  config.base_model_name_or_path = (families / "qwen2").string();
  test::expect_error<DataError>(
      [&] { load_adapter("adapter", config, llama); },
      {"trained on the model family qwen2", "this model is of the family llama",
       "the adapter's own base model"});
  for (const char* own : {"llama", "mistral"}) {  // which GGUF files do not tell apart
    config.base_model_name_or_path = (families / own).string();
    test::expect_error<DataError>([&] { load_adapter("adapter", config, llama); },
                                  {"no adapter_model.safetensors"});
  }
}

}  // namespace
}  // namespace sftrun::weights
