#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "file_builders.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/safetensors.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_error;

/// A model directory that each case damages in one way.
class BrokenModel : public testing::Test {
 protected:
  BrokenModel() {
    config_ = {{"model_type", "llama"},      {"vocab_size", 8},        {"hidden_size", 4},
               {"intermediate_size", 6},     {"num_hidden_layers", 1}, {"num_attention_heads", 2},
               {"tie_word_embeddings", true}};
    use(spec::ArchSpec::from_hf_config(config_, "config.json"));
  }

  void use(const spec::ArchSpec& arch) {
    tensors_.clear();
    for (const spec::TensorSpec& spec : spec::tensor_specs(arch))
      tensors_.push_back(ones(spec.name, spec.shape));
  }

  static TensorToWrite ones(const std::string& name, const std::vector<int64_t>& shape,
                            DType dtype = DType::kF32) {
    int64_t bytes = size_of(dtype);
    for (const int64_t size : shape) bytes *= size;
    return {name, dtype, shape,
            [bytes](void* out) { std::memset(out, 1, static_cast<size_t>(bytes)); }};
  }

  TensorToWrite& tensor(const std::string& name) {
    for (TensorToWrite& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    throw std::logic_error(name);
  }

  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const TensorToWrite& tensor) { return tensor.name == name; });
  }

  void save() {
    test::write_file(directory_ / "config.json", config_.dump());
    write_safetensors(directory_ / "model.safetensors", tensors_);
  }

  void expect_refused(std::initializer_list<std::string> parts) {
    expect_error([&] { Checkpoint::open(directory_.path()); }, parts);
  }

  test::TemporaryDirectory directory_;
  json config_;
  std::vector<TensorToWrite> tensors_;
};

TEST_F(BrokenModel, IsSoundUndamaged) {
  save();
  EXPECT_EQ(Checkpoint::open(directory_.path())->tensors().size(), 11U);
}

/// Opening reads no values; when a run has gone wrong, they are looked at.
TEST_F(BrokenModel, NaNValuesAreFound) {
  save();
  require_finite(*Checkpoint::open(directory_.path()), directory_.path());
  tensor("model.layers.0.mlp.up_proj.weight").produce = [](void* out) {
    std::memset(out, 0, 6 * 4 * sizeof(float));
    static_cast<float*>(out)[23] = std::numeric_limits<float>::infinity();
  };
  save();
  const auto checkpoint = Checkpoint::open(directory_.path());
  expect_error([&] { require_finite(*checkpoint, directory_.path()); },
               {"tensor `model.layers.0.mlp.up_proj.weight` of the base has NaN or infinite",
                directory_.path().string(), "fix: download or copy the model again"});
}

TEST_F(BrokenModel, NoSuchModel) {
  expect_error([] { Checkpoint::open("/nonexistent/model"); },
               {"no such model", "/nonexistent/model"});
  test::write_file(directory_ / "weights.bin", "x");
  expect_error([&] { Checkpoint::open(directory_ / "weights.bin"); },
               {"neither a directory nor a .gguf file"});
}

TEST_F(BrokenModel, NoConfig) {
  expect_refused({"no config.json"});
  test::write_file(directory_ / "adapter_config.json", "{}");
  expect_refused({"an adapter, not a model"});
}

TEST_F(BrokenModel, BrokenConfig) {
  save();
  test::write_file(directory_ / "config.json", "{\n \"model_type\": \"llama\",\n}");
  expect_refused({"not valid JSON", "config.json:3:1"});
}

/// transformers' save_pretrained writes them, and from_pretrained reads them.
TEST_F(BrokenModel, PythonsNumbersAreRead) {
  save();
  std::string text = config_.dump();
  text.insert(1, R"("time_step_limit": [0.0, Infinity], "a": -Infinity, "b": NaN, "c": 1e999, )");
  test::write_file(directory_ / "config.json", text);
  test::write_file(directory_ / "generation_config.json", R"({"max_time": Infinity})");
  const nlohmann::ordered_json kept = Checkpoint::open(directory_.path())->configuration();
  EXPECT_EQ(kept["time_step_limit"], "[0.0,Infinity]");
  EXPECT_EQ(kept["b"], "NaN");
  EXPECT_EQ(nlohmann::ordered_json::parse(kept.dump()), kept);  // as a checkpoint keeps it
  test::write_file(directory_ / "config.json", "{\"a\": Infinity,\n \"b\": NaN, oops}");
  expect_refused({"not valid JSON", "config.json:2:12"});
}

TEST_F(BrokenModel, OtherEncodingsAreNamed) {
  save();
  std::string wide = "\xFF\xFE";
  for (const char c : config_.dump()) wide += std::string{c, '\0'};
  test::write_file(directory_ / "config.json", wide);
  expect_refused({"the file is UTF-16, not UTF-8", "config.json"});
  test::write_file(directory_ / "config.json", "{\"a\": \"caf\xE9\"}");
  expect_refused({"invalid UTF-8", "config.json:1", "iconv -f latin1"});
}

TEST_F(BrokenModel, NoWeights) {
  test::write_file(directory_ / "config.json", config_.dump());
  expect_refused({"no model.safetensors"});
  test::write_file(directory_ / "pytorch_model.bin", "");
  expect_refused({"save the model as safetensors"});
}

TEST_F(BrokenModel, MissingTensor) {
  remove("model.layers.0.mlp.up_proj.weight");
  save();
  expect_refused({"missing tensor `model.layers.0.mlp.up_proj.weight`", "incomplete"});
}

TEST_F(BrokenModel, MissingTensorsAreCounted) {
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
    remove(fmt::format("model.layers.0.self_attn.{}.weight", name));
  save();
  expect_refused({"missing tensors `model.layers.0.self_attn.q_proj.weight`", "and 1 more"});
}

TEST_F(BrokenModel, MisspelledTensor) {
  tensor("model.layers.0.mlp.up_proj.weight").name = "model.layers.0.mlp.upproj.weight";
  save();
  expect_refused({"unknown tensor `model.layers.0.mlp.upproj.weight`",
                  "nearest tensor of this architecture is `model.layers.0.mlp.up_proj.weight`",
                  "model.safetensors"});
}

TEST_F(BrokenModel, UnknownTensor) {
  tensors_.push_back(ones("score.weight", {2, 4}));
  save();
  expect_refused({"unknown tensor `score.weight`", "another architecture"});
}

TEST_F(BrokenModel, ProjectorsWithoutTheirSizes) {
  tensors_.push_back(ones("projectors.world.linear_1.weight", {2, 4}));
  save();
  expect_refused({"`projectors.world.linear_1.weight`", "copy projectors.json, too"});
}

TEST_F(BrokenModel, RotaryBuffersAreSkipped) {
  tensors_.push_back(ones("model.layers.0.self_attn.rotary_emb.inv_freq", {1}));
  save();
  EXPECT_FALSE(
      Checkpoint::open(directory_.path())->has("model.layers.0.self_attn.rotary_emb.inv_freq"));
}

TEST_F(BrokenModel, WrongShape) {
  tensor("model.norm.weight") = ones("model.norm.weight", {5});
  save();
  expect_refused({"tensor `model.norm.weight` has the shape [5]; the configuration implies [4]",
                  "model.safetensors"});
}

TEST_F(BrokenModel, UnsupportedDtype) {
  tensor("model.norm.weight") = ones("model.norm.weight", {4}, DType::kI32);
  save();
  expect_refused({"tensor `model.norm.weight` is stored as I32", "F32, F16 and BF16"});
}

TEST_F(BrokenModel, TiedHeadEqualToTheEmbeddingIsDropped) {
  tensors_.push_back(ones("lm_head.weight", {8, 4}));
  save();
  EXPECT_FALSE(Checkpoint::open(directory_.path())->has("lm_head.weight"));
}

TEST_F(BrokenModel, TiedHeadOfItsOwnIsRefused) {
  TensorToWrite head = ones("lm_head.weight", {8, 4});
  head.produce = [](void* out) { std::memset(out, 2, 128); };
  tensors_.push_back(head);
  save();
  expect_refused(
      {"tensor `lm_head.weight` differs from `model.embed_tokens.weight`", "tie_word_embeddings"});
}

TEST_F(BrokenModel, UntiedWithoutHead) {
  config_["tie_word_embeddings"] = false;
  save();
  expect_refused({"missing tensor `lm_head.weight`", "\"tie_word_embeddings\": true"});
}

TEST_F(BrokenModel, GenerationConfigAddsEndTokens) {
  config_["eos_token_id"] = 2;
  save();
  test::write_file(directory_ / "generation_config.json", R"({"eos_token_id": [2, 5]})");
  EXPECT_EQ(Checkpoint::open(directory_.path())->arch().eos_token_ids,
            (std::vector<int64_t>{2, 5}));
  test::write_file(directory_ / "generation_config.json", R"({"eos_token_id": "x"})");
  expect_refused({"`eos_token_id` must be a token id", "generation_config.json"});
}

TEST_F(BrokenModel, TruncatedWeights) {
  save();
  const fs::path path = directory_ / "model.safetensors";
  fs::resize_file(path, fs::file_size(path) - 1);
  expect_refused({"truncated", "model.safetensors"});
}

class BrokenShards : public BrokenModel {
 protected:
  BrokenShards() {
    test::write_file(directory_ / "config.json", config_.dump());
    write_sharded_safetensors(directory_.path(), tensors_, 200);
    index_ = json::parse(test::read_file(directory_ / kIndex));
  }
  void save_index() { test::write_file(directory_ / kIndex, index_.dump()); }
  std::string shard_of(const std::string& name) const {
    return index_["weight_map"][name].get<std::string>();
  }

  static constexpr const char* kIndex = "model.safetensors.index.json";
  static constexpr const char* kNorm = "model.norm.weight";
  static constexpr const char* kEmbedding = "model.embed_tokens.weight";
  json index_;
};

TEST_F(BrokenShards, IsSoundUndamaged) {
  EXPECT_EQ(Checkpoint::open(directory_.path())->tensors().size(), 11U);
}

TEST_F(BrokenShards, MissingShard) {
  fs::remove(directory_ / shard_of(kNorm));
  expect_refused({"the shard " + shard_of(kNorm) + " is missing", kIndex});
}

TEST_F(BrokenShards, TensorNotWhereTheIndexHasIt) {
  ASSERT_NE(shard_of(kNorm), shard_of(kEmbedding));
  index_["weight_map"][kNorm] = shard_of(kEmbedding);
  save_index();
  expect_refused({"tensor `model.norm.weight` is not in " + shard_of(kEmbedding), kIndex});
}

TEST_F(BrokenShards, TensorInTwoShards) {
  write_safetensors(directory_ / shard_of(kEmbedding), tensors_);
  expect_refused({"is also in " + shard_of(kEmbedding)});
}

TEST_F(BrokenShards, PathsAreNotFollowed) {
  index_["weight_map"][kNorm] = "../elsewhere.safetensors";
  save_index();
  expect_refused(
      {"tensor `model.norm.weight` is mapped to \"../elsewhere.safetensors\", which is not a file "
       "name"});
}

TEST_F(BrokenShards, NoMap) {
  index_.erase("weight_map");
  save_index();
  expect_refused({"`weight_map` is missing", kIndex});
}

/// A GGUF file with the metadata of BrokenModel and no tensors.
test::GgufBuilder small_gguf(uint32_t hidden = 4) {
  test::GgufBuilder builder;
  builder.key("general.architecture", 8, test::GgufBuilder::text("llama"));
  const std::vector<std::pair<const char*, uint32_t>> sizes = {
      {"llama.vocab_size", 8},           {"llama.embedding_length", hidden},
      {"llama.feed_forward_length", 6},  {"llama.block_count", 1},
      {"llama.attention.head_count", 2}, {"llama.context_length", 16}};
  for (const auto& [key, value] : sizes) builder.key(key, 4, test::little_endian<uint32_t>(value));
  builder.key("llama.attention.layer_norm_rms_epsilon", 6, test::little_endian<float>(1e-5F));
  return builder;
}

void add_tensors(test::GgufBuilder& builder, const std::set<std::string>& leave_out = {},
                 uint64_t hidden = 4) {
  const std::vector<std::pair<std::string, std::vector<uint64_t>>> tensors = {
      {"token_embd.weight", {hidden, 8}},        {"blk.0.attn_norm.weight", {hidden}},
      {"blk.0.attn_q.weight", {hidden, hidden}}, {"blk.0.attn_k.weight", {hidden, hidden}},
      {"blk.0.attn_v.weight", {hidden, hidden}}, {"blk.0.attn_output.weight", {hidden, hidden}},
      {"blk.0.ffn_norm.weight", {hidden}},       {"blk.0.ffn_gate.weight", {hidden, 6}},
      {"blk.0.ffn_up.weight", {hidden, 6}},      {"blk.0.ffn_down.weight", {6, hidden}},
      {"output_norm.weight", {hidden}}};
  for (const auto& [name, shape] : tensors) {
    if (leave_out.contains(name)) continue;
    builder.tensor(name, shape, 0, builder.data_bytes);
    builder.data_bytes += 32 * hidden * hidden;
  }
}

class BrokenGguf : public testing::Test {
 protected:
  std::unique_ptr<Checkpoint> open(const test::GgufBuilder& builder) {
    test::write_file(directory_ / "m.gguf", builder.bytes());
    return Checkpoint::open(directory_ / "m.gguf");
  }
  void expect_refused(const test::GgufBuilder& builder, std::initializer_list<std::string> parts) {
    expect_error([&] { open(builder); }, parts);
  }
  test::TemporaryDirectory directory_;
};

TEST_F(BrokenGguf, IsSoundUndamaged) {
  test::GgufBuilder builder = small_gguf();
  add_tensors(builder);
  const auto checkpoint = open(builder);
  EXPECT_TRUE(checkpoint->arch().tie_word_embeddings);
  EXPECT_FALSE(checkpoint->arch().qkv_bias);
  expect_error([&] { checkpoint->tokenizer(); }, {"no vocabulary", "m.gguf"});
  EXPECT_EQ(checkpoint->chat_template(), std::nullopt);
}

TEST_F(BrokenGguf, MissingAndUnknownTensors) {
  test::GgufBuilder missing = small_gguf();
  add_tensors(missing, {"blk.0.ffn_up.weight"});
  expect_refused(missing, {"missing tensor `blk.0.ffn_up.weight`", "m.gguf"});
  missing.tensor("blk.0.ffn_upp.weight", {4, 6}, 0, missing.data_bytes);
  missing.data_bytes += 128;
  expect_refused(missing, {"unknown tensor `blk.0.ffn_upp.weight`",
                           "nearest tensor of this architecture is `blk.0.ffn_up.weight`"});
}

TEST_F(BrokenGguf, QueriesKeysAndValuesInOneTensor) {
  constexpr uint32_t kF32 = 0, kQ8_0 = 8, kHidden = 32;
  const std::set<std::string> apart = {"blk.0.attn_q.weight", "blk.0.attn_k.weight",
                                       "blk.0.attn_v.weight"};
  const auto with_rows = [&](uint64_t rows) {
    test::GgufBuilder builder = small_gguf(kHidden);
    add_tensors(builder, apart, kHidden);
    builder.tensor("blk.0.attn_qkv.weight", {kHidden, rows}, kF32, builder.data_bytes);
    builder.data_bytes += 4 * kHidden * rows;
    return builder;
  };
  EXPECT_EQ(open(with_rows(96))->tensors().size(), 11U);
  expect_refused(with_rows(64), {"tensor `blk.0.attn_qkv.weight` has the shape [64, 32]",
                                 "the configuration implies [96, 32]"});
  test::GgufBuilder across_rows = with_rows(96);
  across_rows.tensor("blk.0.attn_qkv.bias", {96}, kQ8_0, across_rows.data_bytes);
  across_rows.data_bytes += 128;
  expect_refused(across_rows,
                 {"tensor `blk.0.attn_qkv.bias` is stored as Q8_0, whose blocks span its rows"});
}

TEST_F(BrokenGguf, UnsupportedType) {
  test::GgufBuilder builder = small_gguf();
  add_tensors(builder, {"output_norm.weight"});
  builder.tensor("output_norm.weight", {4}, 28, builder.data_bytes);
  builder.data_bytes += 32;
  expect_refused(builder, {"tensor `output_norm.weight` is stored as F64", "Q2_K to Q6_K"});
}

TEST_F(BrokenGguf, PartOfASplitModel) {
  test::GgufBuilder builder = small_gguf();
  builder.key("split.count", 2, test::little_endian<uint16_t>(3));
  add_tensors(builder);
  expect_refused(builder, {"one part of a split model", "llama-gguf-split --merge"});
}

TEST_F(BrokenGguf, BadRopeDivisors) {
  test::GgufBuilder builder = small_gguf();
  add_tensors(builder);
  builder.tensor("rope_freqs.weight", {2}, 0, builder.data_bytes);
  builder.data_bytes += 32;
  expect_refused(builder, {"rope_freqs.weight must have head_dim / 2 = 1"});
}

}  // namespace
}  // namespace sftrun::weights
