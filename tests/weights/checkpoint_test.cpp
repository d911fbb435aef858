#include "sftrun/weights/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "file_builders.h"
#include "read_f32.h"
#include "sftrun/weights/fingerprint.h"
#include "sftrun/weights/gguf.h"
#include "sftrun/weights/safetensors.h"
#include "support/half.h"
#include "support/test_data.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using test::kModels;
using test::read_f32;

std::vector<uint16_t> read_half(const Checkpoint& checkpoint, const TensorInfo& info, DType dtype) {
  std::vector<uint16_t> values(static_cast<size_t>(info.numel()));
  checkpoint.read(info.name, dtype, values.data());
  return values;
}

class EveryModel : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, EveryModel,
                         testing::Values("tied-gqa", "linear-bias-sharded", "llama3-gguf",
                                         "yarn-fp16", "dynamic-bf16", "llama3-gguf/model-F32.gguf",
                                         "llama3-gguf/model-F16.gguf",
                                         "llama3-gguf/model-Q8_0.gguf"));

TEST_P(EveryModel, HoldsWhatItsArchitectureImplies) {
  const auto checkpoint = Checkpoint::open(kModels / GetParam());
  const std::vector<spec::TensorSpec> specs = spec::tensor_specs(checkpoint->arch());
  ASSERT_EQ(checkpoint->tensors().size(), specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(checkpoint->tensors()[i].name, specs[i].name);
    EXPECT_EQ(checkpoint->tensors()[i].shape, specs[i].shape);
    EXPECT_TRUE(checkpoint->has(specs[i].name));
  }
  EXPECT_FALSE(checkpoint->has("model.embed_tokens.bias"));
}

/// Each range is that of the whole tensor, and reads no more than its own bytes and the rest of the
/// blocks at its ends.   @return tensors that were read in ranges
int expect_ranges(const Checkpoint& checkpoint) {
  int num_in_ranges = 0;
  for (const TensorInfo& info : checkpoint.tensors()) {
    SCOPED_TRACE(info.name);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto size = static_cast<size_t>(size_of(dtype));
      const auto numel = static_cast<size_t>(info.numel());
      std::vector<std::byte> whole(numel * size), part(numel * size);
      checkpoint.read(info.name, dtype, whole.data());
      for (const size_t first : {size_t{0}, numel / 3, numel / 2 + 1}) {
        const size_t count = std::min(numel / 3 + 1, numel - first);
        const auto bytes = checkpoint.read_range(info.name, dtype, static_cast<int64_t>(first),
                                                 static_cast<int64_t>(count), part.data());
        if (!bytes) continue;
        ++num_in_ranges;
        EXPECT_EQ(std::memcmp(part.data(), whole.data() + first * size, count * size), 0);
        constexpr size_t kTwoBlocks = 2 * 32 * sizeof(float);
        EXPECT_LE(*bytes, info.stored_bytes * count / numel + kTwoBlocks);
        EXPECT_EQ(*bytes > 0, count > 0);
      }
    }
  }
  return num_in_ranges;
}

TEST_P(EveryModel, ReadsRanges) {
  EXPECT_GT(expect_ranges(*Checkpoint::open(kModels / GetParam())), 0);
}

/// Experts in tensors of their own, and such whose order in files is another.
TEST(Checkpoint, ReadsRangesOfExperts) {
  for (const char* family : {"qwen3_moe", "mixtral", "gpt_oss", "gemma4_moe"}) {
    SCOPED_TRACE(family);
    const auto checkpoint = Checkpoint::open(fs::path(SFTRUN_TEST_DATA) / "families" / family);
    EXPECT_GT(expect_ranges(*checkpoint), 0);
  }
}

TEST_P(EveryModel, EveryDtypeIsTheFp32ValuesRounded) {
  const auto checkpoint = Checkpoint::open(kModels / GetParam());
  for (const TensorInfo& info : checkpoint->tensors()) {
    const std::vector<float> values = read_f32(*checkpoint, info);
    const std::vector<uint16_t> bf16 = read_half(*checkpoint, info, DType::kBF16),
                                f16 = read_half(*checkpoint, info, DType::kF16);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(std::isfinite(values[i])) << info.name;
      ASSERT_EQ(bf16[i], f32_to_bf16(values[i])) << info.name << " " << i;
      ASSERT_EQ(f16[i], test::f32_to_f16(values[i])) << info.name << " " << i;
    }
  }
}

TEST_P(EveryModel, MappedBytesAreTheReadOnes) {
  const auto checkpoint = Checkpoint::open(kModels / GetParam());
  size_t num_mapped = 0;
  for (const TensorInfo& info : checkpoint->tensors()) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const auto mapped = checkpoint->mapped(info.name, dtype);
      if (!mapped) continue;
      ++num_mapped;
      std::vector<std::byte> read(static_cast<size_t>(info.numel() * size_of(dtype)));
      checkpoint->read(info.name, dtype, read.data());
      ASSERT_EQ(mapped->size(), read.size());
      EXPECT_EQ(std::memcmp(mapped->data(), read.data(), read.size()), 0) << info.name;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(mapped->data()) % size_of(dtype), 0U);
    }
  }
  if (std::string(GetParam()).ends_with("F32.gguf")) {
    // All but q and k, whose rows are permuted.
    EXPECT_EQ(num_mapped, checkpoint->tensors().size() - 4);
  }
}

TEST_P(EveryModel, FingerprintIsStableAndItsOwn) {
  const auto checkpoint = Checkpoint::open(kModels / GetParam());
  const auto print = [](const Checkpoint& model) {
    return fingerprint(model, hash_weights(model, FileHashes({})));
  };
  const auto again = Checkpoint::open(kModels / GetParam());
  EXPECT_EQ(print(*checkpoint), print(*again));
  EXPECT_EQ(checkpoint->configuration(), again->configuration());
  EXPECT_TRUE(has_fingerprint(*checkpoint, print(*again), FileHashes({})));
  EXPECT_TRUE(has_fingerprint(*checkpoint, again->sampled_fingerprint(), FileHashes({})));
  for (const char* other : {"tied-gqa", "yarn-fp16"}) {
    if (std::string(GetParam()) == other) continue;
    const auto another = Checkpoint::open(kModels / other);
    EXPECT_NE(print(*checkpoint), print(*another));
    EXPECT_NE(checkpoint->configuration(), another->configuration());
    EXPECT_FALSE(has_fingerprint(*checkpoint, print(*another), FileHashes({})));
    EXPECT_FALSE(has_fingerprint(*checkpoint, another->sampled_fingerprint(), FileHashes({})));
  }
}

TEST(HfCheckpoint, ReadsTheStoredNumbers) {
  const auto checkpoint = Checkpoint::open(kModels / "tied-gqa");
  const SafetensorsFile file(kModels / "tied-gqa" / "model.safetensors");
  for (const TensorInfo& info : checkpoint->tensors()) {
    const std::vector<float> values = read_f32(*checkpoint, info);
    EXPECT_EQ(std::memcmp(values.data(), file.find(info.name)->bytes.data(), values.size() * 4), 0)
        << info.name;
    EXPECT_EQ(info.format, "F32");
    EXPECT_EQ(info.stored_bytes, values.size() * 4);
  }
}

TEST(HfCheckpoint, ReadsOldAndNewConfigurations) {
  const auto linear = Checkpoint::open(kModels / "linear-bias-sharded");
  EXPECT_EQ(linear->arch().ropes[0].type, spec::RopeType::kLinear);
  EXPECT_EQ(linear->arch().ropes[0].theta, 5000.0);
  EXPECT_TRUE(linear->arch().qkv_bias && linear->arch().mlp_bias);
  const auto yarn = Checkpoint::open(kModels / "yarn-fp16");
  EXPECT_EQ(yarn->arch().ropes[0].type, spec::RopeType::kYarn);
  EXPECT_EQ(yarn->arch().ropes[0].original_max_position_embeddings, 32);
  EXPECT_EQ(yarn->arch().head_dim, 16);
  const auto llama3 = Checkpoint::open(kModels / "llama3-gguf");
  EXPECT_EQ(llama3->arch().eos_token_ids, (std::vector<int64_t>{3, 0}));
}

TEST(GgufCheckpoint, F32IsTheHfModelBitForBit) {
  const auto hf = Checkpoint::open(kModels / "llama3-gguf"),
             gguf = Checkpoint::open(kModels / "llama3-gguf/model-F32.gguf");
  json expected = hf->arch().to_hf_config(), config = gguf->arch().to_hf_config();
  expected.erase("eos_token_id");  // a GGUF file names one
  config.erase("eos_token_id");
  EXPECT_EQ(config, expected);
  EXPECT_EQ(gguf->arch().eos_token_ids, std::vector<int64_t>{3});
  for (const TensorInfo& info : hf->tensors()) {
    EXPECT_EQ(read_f32(*gguf, info), read_f32(*hf, info)) << info.name;
  }
}

TEST(GgufCheckpoint, F16AndQ8AreTheRoundedHfModel) {
  const auto hf = Checkpoint::open(kModels / "llama3-gguf");
  const auto f16 = Checkpoint::open(kModels / "llama3-gguf/model-F16.gguf"),
             q8 = Checkpoint::open(kModels / "llama3-gguf/model-Q8_0.gguf");
  for (const TensorInfo& info : hf->tensors()) {
    const std::vector<float> exact = read_f32(*hf, info), half = read_f32(*f16, info),
                             eighth = read_f32(*q8, info);
    const bool matrix = info.shape.size() == 2;
    const float largest = *std::max_element(
        exact.begin(), exact.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    for (size_t i = 0; i < exact.size(); ++i) {
      ASSERT_EQ(half[i], matrix ? test::f16_to_f32(test::f32_to_f16(exact[i])) : exact[i])
          << info.name;
      ASSERT_NEAR(eighth[i], exact[i], matrix ? std::abs(largest) / 127 : 0) << info.name;
    }
  }
}

TEST(Norms, AreThoseOfAModelInEveryForm) {
  const auto squares = [](const char* model) {
    return norm_squares(*Checkpoint::open(kModels / model));
  };
  const std::vector<double> own = squares("llama3-gguf");
  EXPECT_EQ(own.size(), 5U);  // of two layers, and the last
  for (const char* form : {"F32", "F16", "Q8_0"}) {
    EXPECT_TRUE(are_norms_of_one_model(
        own, squares(fmt::format("llama3-gguf/model-{}.gguf", form).c_str())));
  }
  EXPECT_FALSE(are_norms_of_one_model(own, squares("tied-gqa")));
  std::vector<double> other = own;
  other.back() *= 1.0001;
  EXPECT_FALSE(are_norms_of_one_model(own, other));
  EXPECT_FALSE(are_norms_of_one_model(own, {}));
}

/// One text through the tokenizer of the directory or file, against the `tokenizers` library.
void expect_reference_ids(const fs::path& model) {
  const fs::path directory = fs::is_directory(model) ? model : model.parent_path();
  const json reference = json::parse(test::read_file(directory / "reference.json"));
  const tokenizer::Tokenizer tokenizer = Checkpoint::open(model)->tokenizer();
  EXPECT_EQ(tokenizer.encode(reference["text"].get<std::string>(), true),
            reference["text_ids"].get<std::vector<tokenizer::TokenId>>());
}

TEST(CheckpointText, TokenizersGiveTheReferencesIds) {
  expect_reference_ids(kModels / "tied-gqa");
  expect_reference_ids(kModels / "llama3-gguf");
  expect_reference_ids(kModels / "llama3-gguf/model-Q8_0.gguf");
}

TEST(CheckpointText, TemplatesAndSpecialTexts) {
  const auto plain = Checkpoint::open(kModels / "tied-gqa"),
             hf = Checkpoint::open(kModels / "llama3-gguf"),
             gguf = Checkpoint::open(kModels / "llama3-gguf/model-F16.gguf"),
             bare = Checkpoint::open(kModels / "yarn-fp16");
  ASSERT_TRUE(plain->chat_template() && hf->chat_template());
  EXPECT_EQ(hf->chat_template(), "{{ bos_token }}" + *plain->chat_template());
  EXPECT_EQ(gguf->chat_template(), hf->chat_template());
  EXPECT_EQ(bare->chat_template(), std::nullopt);
  EXPECT_EQ(plain->render_defaults().bos_token, "<|turn|>");
  for (const Checkpoint* checkpoint : {hf.get(), gguf.get()}) {
    const templates::RenderOptions options = checkpoint->render_defaults();
    EXPECT_EQ(options.bos_token, "<|begin|>");
    EXPECT_EQ(options.eos_token, "<|end|>");
    EXPECT_EQ(options.pad_token, "<|pad|>");
    EXPECT_EQ(options.unk_token, "");
  }
  EXPECT_EQ(bare->render_defaults().bos_token, "");
}

}  // namespace
}  // namespace sftrun::weights
