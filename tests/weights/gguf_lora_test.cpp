#include "sftrun/weights/gguf_lora.h"
#include "sftrun/spec/blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/gguf_export.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using test::expect_error;

const fs::path kConverted = fs::path(SFTRUN_TEST_DATA) / "converted";
constexpr int64_t kAdapterRank = 3;

/// Values that look random, of A or B.
TensorToWrite random_tensor(const std::string& name, const std::vector<int64_t>& shape) {
  return {name, DType::kF32, shape, [=](void* out) {
            auto state = static_cast<uint32_t>(std::hash<std::string>{}(name));
            for (int64_t i = 0; i < shape[0] * shape[1]; ++i) {
              state = state * 1664525U + 1013904223U;
              static_cast<float*>(out)[i] =
                  static_cast<float>(state >> 8) / static_cast<float>(1U << 24) - 0.5F;
            }
          }};
}

/// An adapter of every linear layer and of all experts, as peft names them.
void write_whole_adapter(const spec::ArchSpec& arch, const fs::path& directory, bool rslora) {
  AdapterConfig config;
  config.lora.r = kAdapterRank;
  config.lora.alpha = 7;
  config.lora.rslora = rslora;
  std::set<std::string> modules;
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const std::string& module, int64_t out, int64_t in, int64_t ranks) {
    tensors.push_back(random_tensor(lora_a_name(module), {ranks, in}));
    tensors.push_back(random_tensor(lora_b_name(module), {out, ranks}));
  };
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      if (linear.is_router) continue;
      add(spec::name_in_layer(arch, layer, linear.module), linear.out_features, linear.in_features,
          kAdapterRank);
      modules.insert(linear.module.substr(linear.module.rfind('.') + 1));
    }
    for (const spec::ExpertSpec& experts : spec::layer_experts(arch, layer)) {
      const bool is_inner = experts.division == Division::kOutputs;  // wrapped by the other
      const std::string name = spec::name_in_layer(arch, layer, experts.module),
                        stem = name.substr(0, name.rfind('.'));
      add(stem + (is_inner ? ".base_layer" : ""), experts.out_features, experts.in_features,
          arch.mixture.num_experts * kAdapterRank);
      if (layer == 0) config.lora.target_parameters.push_back(experts.module);
    }
  }
  config.lora.target_modules.assign(modules.begin(), modules.end());
  std::sort(config.lora.target_parameters.begin(), config.lora.target_parameters.end());
  write_adapter(directory, config, tensors);
}

/// scale * B A, in the order of the checkpoint's tensor.
std::vector<float> update_of(const TensorInfo& info, const LoraPair& pair) {
  const int64_t experts = std::max<int64_t>(1, pair.num_experts), out = pair.out_features,
                in = pair.in_features, r = pair.r;
  const bool in_turn = info.layout.view.size() == 4;  // gpt-oss: gate, up, gate, up, …
  std::vector<float> update(static_cast<size_t>(experts * out * in));
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t row = 0; row < out; ++row) {
      const int64_t place = in_turn ? row % 2 * (out / 2) + row / 2 : row;
      for (int64_t column = 0; column < in; ++column) {
        double sum = 0;
        for (int64_t k = 0; k < r; ++k) {
          sum += static_cast<double>(pair.b[static_cast<size_t>((row * r + k) * experts + e)]) *
                 pair.a[static_cast<size_t>((e * r + k) * in + column)];
        }
        update[static_cast<size_t>((e * out + place) * in + column)] =
            static_cast<float>(pair.scale * sum);
      }
    }
  }
  return update;
}

std::vector<float> floats_of(const GgufFile& file, const std::string& name) {
  const GgufTensor* tensor = file.find(name);
  if (!tensor || tensor->type.name != "F32") {
    ADD_FAILURE() << "no F32 tensor " << name;
    return {};
  }
  std::vector<float> values(static_cast<size_t>(tensor->numel()));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

/// alpha / r * B A, as llama.cpp computes it: of each expert.
std::vector<float> product_in(const GgufFile& file, const std::string& name, double alpha) {
  const std::vector<float> a = floats_of(file, name + ".lora_a"),
                           b = floats_of(file, name + ".lora_b");
  const GgufTensor *of_a = file.find(name + ".lora_a"), *of_b = file.find(name + ".lora_b");
  if (!of_a || !of_b) return {};
  const size_t in = static_cast<size_t>(of_a->shape.back()),
               r = static_cast<size_t>(of_b->shape.back()),
               out = static_cast<size_t>(of_b->shape[of_b->shape.size() - 2]),
               experts = a.size() / (in * r);
  std::vector<float> product(experts * out * in);
  for (size_t e = 0; e < experts; ++e) {
    for (size_t row = 0; row < out; ++row) {
      for (size_t column = 0; column < in; ++column) {
        double sum = 0;
        for (size_t k = 0; k < r; ++k)
          sum += static_cast<double>(b[(e * out + row) * r + k]) * a[(e * r + k) * in + column];
        product[(e * out + row) * in + column] =
            static_cast<float>(alpha / static_cast<double>(r) * sum);
      }
    }
  }
  return product;
}

class GgufLora : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Files, GgufLora,
                         testing::Values("llama-F32", "qwen2-F32", "gemma3-F32", "phi3-F32",
                                         "qwen3_5-F32", "qwen3_moe-F32", "gpt_oss-F32",
                                         "gemma4_moe-Q8_0", "mixtral-Q8_0"));

/// What the file's A and B add to a tensor of the base's file is what the adapter adds to it.
TEST_P(GgufLora, AddsWhatTheAdapterAdds) {
  const fs::path base_path = kConverted / (std::string(GetParam()) + ".gguf");
  const auto base = Checkpoint::open(base_path);
  const test::TemporaryDirectory directory;
  write_whole_adapter(base->arch(), directory / "peft", true);
  write_gguf_lora(directory / "peft", base_path, base->arch(), "f32", directory / "lora.gguf");
  const auto config = load_adapter_config(directory / "peft", base->arch());
  const AdapterTensors adapter = load_adapter(directory / "peft", config, base->arch());
  const GgufFile file(directory / "lora.gguf"), base_file(base_path);
  EXPECT_EQ(file.metadata()["general.architecture"], base_file.metadata()["general.architecture"]);
  EXPECT_EQ(file.metadata()["general.type"], "adapter");
  EXPECT_EQ(file.metadata()["adapter.type"], "lora");
  const double alpha = file.metadata()["adapter.lora.alpha"].get<double>();
  size_t num_adapted = 0;
  for (const GgufPiece& piece : gguf_pieces(base->arch())) {
    const TensorInfo& info = base->tensors().at(piece.source);
    const std::string module =
        info.name.ends_with(".weight") ? info.name.substr(0, info.name.size() - 7) : info.name;
    const auto pair = adapter.lora.find(module);
    if (pair == adapter.lora.end()) continue;
    ++num_adapted;
    std::vector<float> expected(static_cast<size_t>(piece.num_rows() * piece.row_size));
    fill_rows(piece, update_of(info, pair->second).data(), 0, piece.num_rows(), expected.data());
    const std::vector<float> product = product_in(file, piece.name, alpha);
    ASSERT_EQ(product.size(), expected.size()) << piece.name;
    for (size_t i = 0; i < product.size(); ++i)
      ASSERT_NEAR(product[i], expected[i], 1e-5) << piece.name << " " << i;
  }
  EXPECT_GT(num_adapted, 0U);
  EXPECT_EQ(file.tensors().size(), 2 * num_adapted);
}

/// An adapter of nothing but the embedding and the head.
void write_adapter_of_ends(const spec::ArchSpec& arch, const fs::path& directory) {
  AdapterConfig config;
  config.lora.r = kAdapterRank;
  config.lora.alpha = 7;
  config.lora.target_modules = {"embed_tokens", "lm_head"};
  const LoraNames embedding = embedding_lora_names(spec::embedding_module(arch));
  write_adapter(directory, config,
                {random_tensor(embedding.a, {kAdapterRank, arch.vocab_size}),
                 random_tensor(embedding.b, {arch.hidden_size, kAdapterRank}),
                 random_tensor(lora_a_name("lm_head"), {kAdapterRank, arch.hidden_size}),
                 random_tensor(lora_b_name("lm_head"), {arch.vocab_size, kAdapterRank})});
}

/// llama.cpp gets rows of the embedding's A, and multiplies them by B (llm_graph_context's
/// build_inp_embd).
TEST(GgufLora, EmbeddingAndHead) {
  const fs::path base_path = kConverted / "llama-F32.gguf";
  const auto base = Checkpoint::open(base_path);
  const spec::ArchSpec& arch = base->arch();
  ASSERT_FALSE(arch.tie_word_embeddings);
  const test::TemporaryDirectory directory;
  write_adapter_of_ends(arch, directory / "peft");
  write_gguf_lora(directory / "peft", base_path, arch, "f32", directory / "lora.gguf");
  const GgufFile file(directory / "lora.gguf");
  const AdapterTensors adapter =
      load_adapter(directory / "peft", AdapterConfig::load(directory / "peft"), arch);
  const LoraPair& pair = adapter.lora.at("model.embed_tokens");
  EXPECT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.find("token_embd.weight.lora_a")->shape,
            (std::vector<int64_t>{arch.vocab_size, kAdapterRank}));
  EXPECT_EQ(file.find("output.weight.lora_b")->shape,
            (std::vector<int64_t>{arch.vocab_size, kAdapterRank}));
  const std::vector<float> a = floats_of(file, "token_embd.weight.lora_a");
  for (int64_t token = 0; token < arch.vocab_size; ++token) {
    for (int64_t k = 0; k < kAdapterRank; ++k)
      ASSERT_EQ(a[static_cast<size_t>(token * kAdapterRank + k)],
                pair.a[static_cast<size_t>(k * arch.vocab_size + token)]);
  }
  EXPECT_EQ(floats_of(file, "token_embd.weight.lora_b"), pair.b);
}

TEST(GgufLora, RefusesTiedEnds) {
  const fs::path base_path = kConverted / "gemma3-F32.gguf";
  const auto base = Checkpoint::open(base_path);
  ASSERT_TRUE(base->arch().tie_word_embeddings);
  const test::TemporaryDirectory directory;
  write_adapter_of_ends(base->arch(), directory / "peft");
  expect_error(
      [&] {
        write_gguf_lora(directory / "peft", base_path, base->arch(), "f32",
                        directory / "lora.gguf");
      },
      {"llama.cpp has one tensor for the embedding and its tied head",
       "sftrun merge --format gguf --adapter " + (directory / "peft").string() + " --output "});
}

TEST(GgufLora, RefusesABaseThatHoldsQKAndVInOne) {
  const fs::path base_path = kConverted / "llama_fused-Q8_0.gguf";
  const auto base = Checkpoint::open(base_path);
  const test::TemporaryDirectory directory;
  write_whole_adapter(base->arch(), directory / "peft", false);
  expect_error(
      [&] {
        write_gguf_lora(directory / "peft", base_path, base->arch(), "f32",
                        directory / "lora.gguf");
      },
      {"the base has no tensor `blk.0.attn_q.weight` for the adapter: its weights are fused with "
       "others",
       "llama_fused-Q8_0.gguf",
       "convert the base without --fuse-qkv, or merge the adapter: sftrun merge --format gguf "
       "--model " +
           base_path.string() + " --adapter " + (directory / "peft").string() + " --output " +
           (directory / "peft").string() + "-merged-gguf"});
}

}  // namespace
}  // namespace sftrun::weights
