#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "file_builders.h"
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
  EXPECT_EQ(config.r, 2);
  EXPECT_EQ(config.lora_alpha, 16.0);
  EXPECT_EQ(config.lora_dropout, 0.05);
  EXPECT_EQ(config.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_FALSE(config.target_is_pattern || config.use_rslora);
  EXPECT_TRUE(config.modules_to_save.empty());
  EXPECT_EQ(config.task_type, "CAUSAL_LM");
}

TEST(AdapterConfig, ReadsPatternsAndAllLinear) {
  json config = peft_config();
  config["target_modules"] = ".*self_attn.(q|v)_proj";
  EXPECT_TRUE(load_config(config).target_is_pattern);
  EXPECT_EQ(load_config(config).to_json()["target_modules"], config["target_modules"]);
  config["target_modules"] = "all-linear";
  EXPECT_FALSE(load_config(config).target_is_pattern);
  EXPECT_EQ(load_config(config).target_modules, std::vector<std::string>{"all-linear"});
}

TEST(AdapterConfig, ComesBackEqual) {
  json config = peft_config();
  config["use_rslora"] = true;
  config["modules_to_save"] = {"lm_head"};
  const json written = load_config(config).to_json();
  EXPECT_EQ(load_config(written).to_json(), written);
  EXPECT_EQ(written["lora_alpha"].dump(), "16");
  EXPECT_EQ(written["modules_to_save"], config["modules_to_save"]);
  EXPECT_EQ(written["use_rslora"], true);
}

TEST(AdapterConfig, RefusesVariantsByName) {
  const std::vector<std::tuple<const char*, json, std::string>> cases = {
      {"peft_type", "IA3", "the adapter type \"IA3\" is not supported"},
      {"peft_type", nullptr, "`peft_type` must be \"LORA\""},
      {"use_dora", true, "DoRA (`use_dora`) is not supported"},
      {"bias", "all", "`bias: all`"},
      {"fan_in_fan_out", true, "`fan_in_fan_out` is not supported"},
      {"init_lora_weights", "pissa",
       "`init_lora_weights: pissa`, which changes the base model, is not supported"},
      {"rank_pattern", {{"q_proj", 4}}, "`rank_pattern: {\"q_proj\":4}` is not supported"},
      {"layers_to_transform", json::array({0}), "`layers_to_transform: [0]` is not supported"},
      {"use_qalora", true, "`use_qalora: true` is not supported"},
      {"lora_bias", true, "`lora_bias: true` is not supported"},
      {"a_key_of_the_future", 3, "`a_key_of_the_future: 3` is not supported"},
      {"r", 0, "`r` must be a positive integer; it is 0"},
      {"r", "8", "`r` must be a positive integer"},
      {"lora_alpha", "x", "`lora_alpha` must be a number"},
      {"lora_dropout", 1.0, "`lora_dropout` must be at least 0 and less than 1"},
      {"target_modules", nullptr, "`target_modules` must be a list of names"},
      {"target_modules", json::array({3}), "`target_modules` must be a list of names"},
      {"target_modules", json::array(), "`target_modules` must be not empty"},
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

TEST(AdapterConfig, TensorNamesArePefts) {
  EXPECT_EQ(lora_a_name(kQ), "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(lora_b_name(kQ), "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight");
}

TensorToWrite values(const std::string& name, const std::vector<int64_t>& shape,
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
  AdapterConfig config_{.r = 2, .target_modules = {"q_proj", "k_proj"}};
  std::vector<TensorToWrite> tensors_ = {values(lora_a_name(kQ), {2, 4}, 0.25F),
                                         values(lora_b_name(kQ), {4, 2})};
};

TEST_F(Adapter, ComesBackEqual) {
  const std::string k = "model.layers.0.self_attn.k_proj";
  TensorToWrite half{lora_a_name(k), DType::kBF16, {2, 4}, [](void* out) {
                       for (int i = 0; i < 8; ++i)
                         static_cast<uint16_t*>(out)[i] = f32_to_bf16(1.5F);
                     }};
  tensors_.push_back(half);
  tensors_.push_back(values(lora_b_name(k), {2, 2}));
  tensors_.push_back(values("base_model.model.lm_head.weight", {8, 4}, 3.0F));
  config_.modules_to_save = {"lm_head"};
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

TEST_F(Adapter, MissingHalf) {
  tensors_.pop_back();
  expect_refused({"tensor `" + lora_a_name(kQ) + "` has no lora_B beside it"});
  tensors_ = {values(lora_b_name(kQ), {4, 2})};
  expect_refused({"tensor `" + lora_b_name(kQ) + "` has no lora_A beside it"});
}

TEST_F(Adapter, OtherRankThanConfigured) {
  config_.r = 4;
  expect_refused({lora_a_name(kQ), "has the shape [2, 4]; the model wants [4, 4] with r 4"});
}

TEST_F(Adapter, OfAnotherModel) {
  tensors_ = {values(lora_a_name(kQ), {2, 6}), values(lora_b_name(kQ), {4, 2})};
  expect_refused({lora_a_name(kQ), "has the shape [2, 6]; the model wants [2, 4]"});
  const std::string other = "model.layers.1.self_attn.q_proj";
  tensors_ = {values(lora_a_name(other), {2, 4}), values(lora_b_name(other), {4, 2})};
  expect_refused(
      {"no linear layer of this model", "the nearest is `model.layers.0.self_attn.q_proj`"});
  tensors_ = {values(lora_a_name("model.norm"), {2, 4})};
  expect_refused({"`model.norm`, which is no linear layer"});
}

TEST_F(Adapter, NotFinite) {
  tensors_[1] = values(lora_b_name(kQ), {4, 2}, std::numeric_limits<float>::quiet_NaN());
  expect_refused({lora_b_name(kQ), "not finite"});
}

TEST_F(Adapter, UnknownTensors) {
  tensors_.push_back(
      values("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", {4}));
  expect_refused({"lora_magnitude_vector", "a kind of adapter that is not supported"});
  tensors_.back() = values("base_model.model.lm_head.weight", {8, 4});
  expect_refused({"neither LoRA's nor of one of `modules_to_save`"});
  tensors_.back() = values("lm_head.weight", {8, 4});
  expect_refused({"is not named as PEFT names"});
}

TEST_F(Adapter, Empty) {
  tensors_.clear();
  expect_refused({"the adapter holds no tensors"});
  std::filesystem::remove(directory_ / "adapter_model.safetensors");
  test::write_file(directory_ / "adapter_model.bin", "");
  expect_error([&] { load(); }, {"no adapter_model.safetensors", "adapter_model.bin is not read"});
}

// Layers of the same names and sizes do not make it a model of the same family.
TEST(AdapterFamily, AnotherIsRefused) {
  const std::filesystem::path families = std::filesystem::path(SFTRUN_TEST_DATA) / "families";
  const spec::ArchSpec llama = Checkpoint::open(families / "llama")->arch();
  AdapterConfig config;
  config.base_model_name_or_path = (families / "qwen2").string();
  test::expect_error<DataError>(
      [&] { load_adapter("adapter", config, llama); },
      {"made for a model of the family qwen2", "this one is of llama", "its own base model"});
  for (const char* own : {"llama", "mistral"}) {  // which GGUF files do not tell apart
    config.base_model_name_or_path = (families / own).string();
    test::expect_error<DataError>([&] { load_adapter("adapter", config, llama); },
                                  {"no adapter_model.safetensors"});
  }
}

}  // namespace
}  // namespace sftrun::weights
