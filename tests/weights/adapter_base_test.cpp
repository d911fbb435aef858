#include "sftrun/weights/adapter_base.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "file_builders.h"
#include "sftrun/core/file.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/fingerprint.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

// Beside PEFT, models as they are: tests/parity/added_tokens_parity.py.
namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_error;

constexpr int64_t kVocab = 8, kHiddenSize = 4;
constexpr const char *kEmbedding = "model.embed_tokens.weight", *kHead = "lm_head.weight";
const std::string kPeft = "base_model.model.";

/// Each value is `first` and what its place in the tensor adds.
TensorToWrite values(const std::string& name, const std::vector<int64_t>& shape, float first) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return {name, DType::kF32, shape, [=](void* out) {
            for (int64_t i = 0; i < count; ++i)
              static_cast<float*>(out)[i] = first + static_cast<float>(i);
          }};
}

class AdapterBases : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(base());
    make_base(/*tied=*/false);
    config_ = json::parse(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2,
                              "target_modules": ["q_proj"]})");
  }

  fs::path base() const { return directory_ / "base"; }
  fs::path adapter() const { return directory_ / "adapter"; }

  void make_base(bool tied) {
    json config = {
        {"model_type", "llama"},    {"vocab_size", kVocab},        {"hidden_size", kHiddenSize},
        {"intermediate_size", 6},   {"num_hidden_layers", 1},      {"num_attention_heads", 2},
        {"num_key_value_heads", 1}, {"tie_word_embeddings", tied}, {"max_position_embeddings", 8}};
    test::write_file(base() / "config.json", config.dump());
    std::vector<TensorToWrite> tensors;
    for (const spec::TensorSpec& spec :
         spec::tensor_specs(spec::ArchSpec::from_hf_config(config, "config.json")))
      tensors.push_back(values(spec.name, spec.shape, spec.name == kHead ? 500 : 0));
    write_safetensors(base() / "model.safetensors", tensors);
  }

  void add(const std::string& name, const std::vector<int64_t>& shape, float first) {
    tensors_.push_back(values(kPeft + name, shape, first));
  }

  void save() {
    fs::create_directories(adapter());
    test::write_file(adapter() / "adapter_config.json", config_.dump());
    std::vector<TensorToWrite> tensors = tensors_;
    const std::string q = "model.layers.0.self_attn.q_proj";
    tensors.push_back(values(lora_a_name(q), {2, kHiddenSize}, 0));
    tensors.push_back(values(lora_b_name(q), {4, 2}, 0));
    write_safetensors(adapter() / "adapter_model.safetensors", tensors);
  }

  AdapterBase open() {
    save();
    AdapterBase opened = open_adapter_base(base(), adapter());
    // What is the base's is none of the adapter's own.
    const auto config = load_adapter_config(adapter(), opened.checkpoint->arch());
    load_adapter(adapter(), config, opened.checkpoint->arch());
    return opened;
  }
  void expect_refused(std::initializer_list<std::string> parts) {
    save();
    expect_error([&] { open_adapter_base(base(), adapter()); }, parts);
  }

  static std::vector<float> read(const Checkpoint& checkpoint, const std::string& name) {
    std::vector<float> result(static_cast<size_t>(checkpoint.arch().vocab_size * kHiddenSize));
    checkpoint.read(name, DType::kF32, result.data());
    return result;
  }

  test::TemporaryDirectory directory_;
  json config_;
  std::vector<TensorToWrite> tensors_;
};

std::string fingerprint_of(const Checkpoint& checkpoint) {
  return fingerprint(checkpoint, hash_weights(checkpoint, FileHashes({})));
}

TEST_F(AdapterBases, NothingReplacedIsTheBase) {
  add("lm_head.base_layer.weight", {kVocab, kHiddenSize}, 500);  // as the base has it
  const AdapterBase opened = open();
  EXPECT_TRUE(opened.replaced.empty());
  EXPECT_EQ(fingerprint_of(*opened.checkpoint), fingerprint_of(*Checkpoint::open(base())));
  EXPECT_NO_THROW(require_own_base(*opened.checkpoint, base(), adapter()));
}

TEST_F(AdapterBases, ResizedRows) {
  add("model.embed_tokens.weight", {10, kHiddenSize}, 1000);
  add("lm_head.weight", {10, kHiddenSize}, 2000);
  const AdapterBase opened = open();
  const Checkpoint& checkpoint = *opened.checkpoint;
  EXPECT_TRUE(opened.is_resized);
  EXPECT_EQ(opened.replaced, (std::set<std::string>{kEmbedding, kHead}));
  EXPECT_EQ(checkpoint.arch().vocab_size, 10);
  EXPECT_EQ(checkpoint.tensors().at(0).shape, (std::vector<int64_t>{10, kHiddenSize}));
  EXPECT_EQ(read(checkpoint, kEmbedding)[39], 1039);
  EXPECT_EQ(read(checkpoint, kHead)[39], 2039);
  EXPECT_FALSE(checkpoint.mapped(kHead, DType::kF32));
  EXPECT_TRUE(checkpoint.mapped("model.norm.weight", DType::kF32));
  const auto plain = Checkpoint::open(base());
  EXPECT_NE(fingerprint_of(checkpoint), fingerprint_of(*plain));
  EXPECT_NE(checkpoint.sampled_fingerprint(), plain->sampled_fingerprint());
  expect_error(
      [&] { require_own_base(*plain, base(), adapter()); },
      {"replaces rows of the base's embedding or head", adapter().string(), "sftrun merge"});
  const AdapterConfig config = load_adapter_config(adapter(), plain->arch());
  expect_error([&] { load_adapter(adapter(), config, plain->arch()); },
               {"[10, 4]", "the vocabulary was resized", "sftrun merge"});
}

TEST_F(AdapterBases, TiesStayWhereHeadAndEmbeddingAreOne) {
  make_base(/*tied=*/true);
  add("model.embed_tokens.weight", {10, kHiddenSize}, 1000);
  add("lm_head.weight", {10, kHiddenSize}, 1000);
  const AdapterBase opened = open();
  EXPECT_TRUE(opened.checkpoint->arch().tie_word_embeddings);
  EXPECT_FALSE(opened.checkpoint->has(kHead));
  EXPECT_EQ(opened.replaced, std::set<std::string>{kEmbedding});
}

TEST_F(AdapterBases, TiesPartWhereTheHeadHasRowsOfItsOwn) {
  make_base(/*tied=*/true);
  config_["trainable_token_indices"] = {{"lm_head", {2}}};
  add("lm_head.token_adapter.trainable_tokens_delta", {1, kHiddenSize}, 700);
  const AdapterBase opened = open();
  const Checkpoint& checkpoint = *opened.checkpoint;
  EXPECT_FALSE(checkpoint.arch().tie_word_embeddings);
  EXPECT_EQ(checkpoint.tensors().size(), spec::tensor_specs(checkpoint.arch()).size());
  EXPECT_EQ(checkpoint.tensors().back().name, kHead);
  std::vector<float> head = read(checkpoint, kEmbedding);
  for (int i = 0; i < kHiddenSize; ++i)
    head[static_cast<size_t>(2 * kHiddenSize + i)] = 700.0F + static_cast<float>(i);
  EXPECT_EQ(read(checkpoint, kHead), head);
}

TEST_F(AdapterBases, RowsOfTokensInTheirOrder) {
  config_["trainable_token_indices"] = {7, 1};
  add("model.embed_tokens.token_adapter.trainable_tokens_delta", {2, kHiddenSize}, 900);
  const AdapterBase opened = open();
  const std::vector<float> rows = read(*opened.checkpoint, kEmbedding);
  EXPECT_EQ(rows[7 * kHiddenSize], 900);
  EXPECT_EQ(rows[1 * kHiddenSize + 3], 907);
  EXPECT_EQ(rows[2 * kHiddenSize], 2 * kHiddenSize);
  EXPECT_FALSE(opened.is_resized);
  std::vector<uint16_t> half(kVocab * kHiddenSize);
  opened.checkpoint->read(kEmbedding, DType::kBF16, half.data());
  EXPECT_EQ(half[7 * kHiddenSize], 0x4461);  // 900
}

TEST_F(AdapterBases, WholeModulesAreTheAdaptersOwn) {
  config_["modules_to_save"] = {"embed_tokens", "lm_head"};
  add("model.embed_tokens.weight", {kVocab, kHiddenSize}, 1000);
  add("lm_head.weight", {kVocab, kHiddenSize}, 2000);
  EXPECT_TRUE(open().replaced.empty());
  // Resized, with what was there before beside them; and as older versions save them, without.
  tensors_.clear();
  add("model.embed_tokens.weight", {10, kHiddenSize}, 1000);
  add("lm_head.weight", {10, kHiddenSize}, 2000);
  EXPECT_EQ(read(*open().checkpoint, kHead)[0], 2000);
  add("lm_head.original_module.weight", {10, kHiddenSize}, 3000);
  EXPECT_EQ(read(*open().checkpoint, kHead)[0], 3000);
}

TEST_F(AdapterBases, WeightTyingIsOneWeight) {
  make_base(/*tied=*/true);
  config_["modules_to_save"] = {"model.embed_tokens"};
  config_["ensure_weight_tying"] = true;
  add("model.embed_tokens.weight", {kVocab, kHiddenSize}, 1000);
  add("lm_head.weight", {kVocab, kHiddenSize}, 1000);
  const AdapterBase opened = open();
  EXPECT_EQ(read(*opened.checkpoint, kEmbedding)[0], 1000);
  EXPECT_TRUE(opened.checkpoint->arch().tie_word_embeddings);
  EXPECT_TRUE(
      load_adapter_config(adapter(), opened.checkpoint->arch()).lora.modules_to_save.empty());
}

TEST_F(AdapterBases, WhatPissaLeftIsNoBase) {
  config_["init_lora_weights"] = "pissa";
  config_["target_modules"] = {"q_proj", "lm_head"};
  add("lm_head.base_layer.weight", {kVocab, kHiddenSize}, 123);
  save();
  EXPECT_TRUE(open_adapter_base(base(), adapter()).replaced.empty());
  tensors_.clear();
  add("lm_head.base_layer.weight", {10, kHiddenSize}, 123);
  expect_refused({"[10, 4]", "PiSSA", "path_initial_model_for_weight_conversion"});
}

TEST_F(AdapterBases, OneEndWithoutTheOther) {
  add("model.embed_tokens.weight", {10, kHiddenSize}, 0);
  expect_refused({"embedding and head have different sizes",
                  "10 rows in `model.embed_tokens`, 8 in `lm_head`", "adapter_model.safetensors",
                  "save_embedding_layers"});
}

TEST_F(AdapterBases, DamagedRows) {
  add("lm_head.weight", {kVocab, kHiddenSize + 1}, 0);
  expect_refused({kPeft + "lm_head.weight", "has the shape [8, 5], expected [tokens, 4]"});
  tensors_ = {values(kPeft + "lm_head.weight", {kVocab, kHiddenSize},
                     std::numeric_limits<float>::infinity())};
  expect_refused({kPeft + "lm_head.weight", "has NaN or infinite values"});
  tensors_ = {values(kPeft + "lm_head.weight", {kHiddenSize}, 0)};
  expect_refused({kPeft + "lm_head.weight", "[4]"});
}

TEST_F(AdapterBases, IndicesThatDoNotFit) {
  const std::string tokens = "model.embed_tokens.token_adapter.trainable_tokens_delta";
  add(tokens, {2, kHiddenSize}, 0);
  expect_refused({kPeft + tokens, "has 2 rows", "has a different number of tokens"});
  config_["trainable_token_indices"] = {1, 2, 3};
  expect_refused({"has a different number of tokens"});
  config_["trainable_token_indices"] = {1, kVocab};
  expect_refused({"one is for token 8, but the model has only 8 tokens", "save_embedding_layers"});
  for (const json& wrong :
       {json(3), json::parse("[-1, 2]"), json::parse(R"({"a": 1})"), json("a")}) {
    config_["trainable_token_indices"] = wrong;
    expect_refused({"`trainable_token_indices` must be a list of token ids"});
  }
}

TEST_F(AdapterBases, ItsOwnTokenizer) {
  const fs::path tiny = fs::path(SFTRUN_TEST_DATA) / "train" / "models" / "tied";
  fs::copy(tiny, base(), fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  save();
  tensors_.clear();
  const auto config =
      spec::ArchSpec::from_hf_config(json::parse(read_text_file(tiny / "config.json")), "");
  const std::string q = "model.layers.0.self_attn.q_proj";
  const auto write = [&] {
    std::vector<TensorToWrite> tensors = tensors_;
    tensors.push_back(values(lora_a_name(q), {2, config.hidden_size}, 0));
    tensors.push_back(values(lora_b_name(q), {32, 2}, 0));
    write_safetensors(adapter() / "adapter_model.safetensors", tensors);
  };
  write();
  json tokenizer = json::parse(read_text_file(tiny / "tokenizer.json"));
  json names = json::parse(read_text_file(tiny / "tokenizer_config.json"));
  const auto write_tokenizer = [&] {
    test::write_file(adapter() / "tokenizer.json", tokenizer.dump(1));
    test::write_file(adapter() / "tokenizer_config.json", names.dump());
  };
  write_tokenizer();
  EXPECT_FALSE(open_adapter_base(base(), adapter()).text_directory)
      << "the same, written otherwise";
  names["pad_token"] = "<|eos|>";
  write_tokenizer();
  AdapterBase opened = open_adapter_base(base(), adapter());
  EXPECT_EQ(opened.text_directory, adapter());
  EXPECT_EQ(opened.checkpoint->render_defaults().pad_token, "<|eos|>");
  EXPECT_FALSE(opened.new_eos);
  // A token without a row: the base's tokenizer is used.
  json added = tokenizer["added_tokens"][1];
  added["id"] = config.vocab_size;
  added["content"] = "<|end|>";
  tokenizer["added_tokens"].push_back(added);
  names["eos_token"] = "<|end|>";
  write_tokenizer();
  EXPECT_FALSE(open_adapter_base(base(), adapter()).text_directory);
  for (const char* module : {"lm_head", "model.embed_tokens"})
    add(std::string(module) + ".weight", {config.vocab_size + 1, config.hidden_size}, 0);
  write();
  opened = open_adapter_base(base(), adapter());
  EXPECT_EQ(opened.new_eos, config.vocab_size);
  EXPECT_EQ(opened.checkpoint->arch().eos_token_ids.back(), config.vocab_size);
  EXPECT_EQ(opened.checkpoint->tokenizer().token_to_id("<|end|>"), config.vocab_size);
  fs::remove(base() / "tokenizer.json");
  EXPECT_EQ(open_adapter_base(base(), adapter()).text_directory, adapter());
}

}  // namespace
}  // namespace sftrun::weights
