#include "sftrun/spec/tensor_parallel.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "sftrun/core/file.h"
#include "support/expect_error.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;

/// A family of tests/data/families with twice its heads, which two ranks can divide.
ArchSpec family(const std::string& name) {
  const auto path = std::filesystem::path(SFTRUN_TEST_DATA) / "families" / name / "config.json";
  json config = json::parse(read_text_file(path));
  json& text = config.contains("text_config") ? config["text_config"] : config;
  text["head_dim"] = text.contains("head_dim") && text["head_dim"].is_number()
                         ? text["head_dim"].get<int>()
                         : text["hidden_size"].get<int>() / text["num_attention_heads"].get<int>();
  const auto twice = [](json& of) {
    for (const char* key : {"num_attention_heads", "num_key_value_heads", "linear_num_key_heads",
                            "linear_num_value_heads"})
      if (of.contains(key) && of[key].is_number()) of[key] = 2 * of[key].get<int>();
  };
  twice(text);
  if (text.contains("per_layer_config"))
    for (json& layer : text["per_layer_config"]) twice(layer);
  return ArchSpec::from_hf_config(config, path.string());
}

const std::vector<std::string>& families() {
  static const std::vector<std::string> all = {"llama",      "gemma2",  "gemma3",      "gemma4",
                                               "gemma4_moe", "gpt_oss", "mixtral",     "phi3",
                                               "qwen3",      "qwen3_5", "qwen3_5_moe", "qwen3_moe",
                                               "granite",    "smollm3", "qwen2",       "mistral"};
  return all;
}

/// A model and a number of ranks that can divide it.
struct Divided {
  std::string name;
  ArchSpec arch;
  int64_t num_ranks = 2;
};

ArchSpec with_kv_heads(ArchSpec arch, int64_t count) {
  arch.num_kv_heads = count;
  return arch;
}

/// Models with more ranks than heads of keys, in all layers or in some.
std::vector<Divided> models_with_copies() {
  std::vector<Divided> models;
  for (const char* name : {"llama", "gemma3", "phi3", "qwen3_5"})
    for (const int64_t heads : {1, 2})
      models.push_back({name, with_kv_heads(family(name), heads), 4});
  models[6].arch.delta_net.num_key_heads = 1;
  models[7].arch.delta_net.num_key_heads = 4;
  ArchSpec by_layer = with_kv_heads(family("gemma4_moe"), 6);
  for (LayerSpec& layer : by_layer.layers)
    if (layer.num_kv_heads > 0) layer.num_kv_heads = 3;
  models.push_back({"gemma4_moe", by_layer, 6});
  return models;
}

std::vector<Divided> divided_models() {
  std::vector<Divided> models = models_with_copies();
  for (const std::string& name : families()) models.push_back({name, family(name)});
  return models;
}

/// Every index of a divided dimension belongs to one rank, or to consecutive ranks that know how many
/// have it, and which of them they are.
TEST(TensorParallel, RanksDivideEveryIndexOnce) {
  struct Holder {
    int64_t rank, copies, copy;
  };
  for (const auto& [name, arch, num_ranks] : divided_models()) {
    SCOPED_TRACE(name);
    std::map<std::string, std::vector<std::vector<Holder>>> tensors;  // the holders of each index
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      const TensorParallel tensor{.rank = rank, .size = num_ranks};
      require_divisible(arch, tensor, "parallel.tp");
      for (const auto& [tensor_name, slice] : slices_of(arch, tensor)) {
        auto& of = tensors[tensor_name];
        of.resize(static_cast<size_t>(slice.whole_size));
        for (const IndexRange& range : slice.ranges)
          for (int64_t i = range.begin; i < range.end(); ++i)
            of[static_cast<size_t>(i)].push_back({rank, range.copies, range.copy});
      }
    }
    EXPECT_GT(tensors.size(), 2U);
    for (const auto& [tensor_name, of] : tensors) {
      for (const std::vector<Holder>& holders : of) {
        ASSERT_FALSE(holders.empty()) << tensor_name;
        EXPECT_EQ(static_cast<int64_t>(holders.size()), holders[0].copies) << tensor_name;
        for (size_t i = 0; i < holders.size(); ++i) {
          EXPECT_EQ(holders[i].rank, holders[0].rank + static_cast<int64_t>(i)) << tensor_name;
          EXPECT_EQ(holders[i].copy, static_cast<int64_t>(i)) << tensor_name;
        }
      }
    }
  }
}

/// A rank has the head of keys that its queries read, and other tensors are divided as ever.
TEST(TensorParallel, CopiesHeadsOfKeysWhereThereAreFewerThanRanks) {
  const ArchSpec arch = with_kv_heads(family("llama"), 2);
  ASSERT_EQ(arch.num_heads, 8);
  const std::string layer = "model.layers.0.self_attn.";
  for (int64_t rank = 0; rank < 4; ++rank) {
    const TensorParallel tensor{.rank = rank, .size = 4};
    EXPECT_EQ(part_of(arch, tensor).num_heads, 2);
    EXPECT_EQ(part_of(arch, tensor).num_kv_heads, 1);
    const auto slices = slices_of(arch, tensor);
    for (const char* module : {"k_proj.weight", "v_proj.weight"}) {
      const IndexRange& keys = slices.at(layer + module).ranges.at(0);
      EXPECT_EQ(keys.begin, rank / 2 * arch.head_dim);
      EXPECT_EQ(keys.count, arch.head_dim);
      EXPECT_EQ(keys.copies, 2);
      EXPECT_EQ(keys.copy, rank % 2);
    }
    EXPECT_EQ(slices.at(layer + "q_proj.weight").ranges.at(0).copies, 1);
    EXPECT_EQ(slices.at(layer + "o_proj.weight").ranges.at(0).copies, 1);
  }
}

/// `tensor_specs` of a part has the shapes that the slices cut out.
TEST(TensorParallel, PartsHaveTheShapesOfTheirSlices) {
  for (const auto& [name, arch, num_ranks] : divided_models()) {
    SCOPED_TRACE(name);
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      const TensorParallel tensor{.rank = rank, .size = num_ranks};
      const auto slices = slices_of(arch, tensor);
      const auto whole = tensor_specs(arch), part = tensor_specs(part_of(arch, tensor));
      ASSERT_EQ(whole.size(), part.size());
      for (size_t i = 0; i < whole.size(); ++i) {
        std::vector<int64_t> shape = whole[i].shape;
        if (const auto found = slices.find(whole[i].name); found != slices.end()) {
          const TensorSlice& slice = found->second;
          EXPECT_EQ(shape.at(static_cast<size_t>(slice.dim)), slice.whole_size) << whole[i].name;
          shape[static_cast<size_t>(slice.dim)] = slice.size();
        }
        EXPECT_EQ(part[i].shape, shape) << whole[i].name;
      }
    }
  }
}

TEST(TensorParallel, OneRankHasEverything) {
  EXPECT_TRUE(slices_of(family("llama"), {}).empty());
  EXPECT_EQ(part_of(family("llama"), {}).num_heads, family("llama").num_heads);
}

/// 576 channels in blocks of 64 are 9 blocks: 4 and 5.
TEST(TensorParallel, ChannelsAreDividedInWholeBlocks) {
  EXPECT_EQ(range_of(576, 64, {.rank = 0, .size = 2}).count, 256);
  EXPECT_EQ(range_of(576, 64, {.rank = 1, .size = 2}).begin, 256);
  EXPECT_EQ(range_of(576, 64, {.rank = 1, .size = 2}).count, 320);
}

/// q, k and v of one matrix are divided one by one.
TEST(TensorParallel, FusedMatricesAreDividedBySegments) {
  const ArchSpec arch = family("phi3");
  const auto slices = slices_of(arch, {.rank = 1, .size = 2});
  const TensorSlice& qkv = slices.at("model.layers.0.self_attn.qkv_proj.weight");
  ASSERT_EQ(qkv.ranges.size(), 3U);
  const int64_t queries = arch.num_heads * arch.head_dim, keys = arch.num_kv_heads * arch.head_dim;
  EXPECT_EQ(qkv.ranges[0].begin, queries / 2);
  EXPECT_EQ(qkv.ranges[1].begin, queries + keys / 2);
  EXPECT_EQ(qkv.ranges[2].begin, queries + keys + keys / 2);
}

TEST(TensorParallel, RefusesWhatCannotBeDivided) {
  const auto refuse = [](const ArchSpec& arch, const TensorParallel& tensor,
                         std::initializer_list<std::string> parts) {
    test::expect_error<ConfigError>([&] { require_divisible(arch, tensor, "run.yaml:7"); }, parts);
  };
  refuse(family("llama"), {.size = 3},
         {"8 attention heads", "cannot be divided by 3", "run.yaml:7", "fsdp"});
  refuse(with_kv_heads(family("qwen2"), 4), {.size = 6},
         {"4 key-value heads, and 6 neither divides them nor is a multiple of them"});
  refuse(family("qwen3_5"), {.size = 4}, {"6 key heads in its delta nets, and 4 neither divides"});
  refuse(family("llama"), {.size = 2, .multiple = 64},
         {"28 inner channels of an MLP", "blocks of 64 values"});
}

}  // namespace
}  // namespace sftrun::spec
