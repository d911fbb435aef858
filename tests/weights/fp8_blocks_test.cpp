#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "damaged_model.h"
#include "support/test_data.h"

/// FP8 with a scale per block of 128 rows and columns (scripts/fixtures/make_fp8_blocks.py), whole and
/// damaged. Experts are tests/parity/fp8_blocks_parity.py's.
namespace sftrun::weights {
namespace {

using test::kModels;
using test::read_all;

const std::filesystem::path kFp8 = kModels / "fp8-blocks";
const std::string kDownModule = "model.layers.0.mlp.down_proj";  // [140, 150]: four blocks
const std::string kDownScales = kDownModule + ".weight_scale_inv";

std::string scales_of(std::initializer_list<float> values) {
  std::string bytes;
  for (const float value : values) bytes += test::little_endian(value);
  return bytes;
}

TEST(Fp8Blocks, ReadAsTheReferenceUnpacksThem) {
  const auto checkpoint = Checkpoint::open(kFp8);
  const SafetensorsFile expected(kFp8 / "dequantised.safetensors");
  size_t matrices = 0, compared = 0;
  for (const TensorInfo& info : checkpoint->tensors()) {
    const auto packed = checkpoint->packed(info.name);
    ASSERT_EQ(packed.has_value(), info.name.ends_with("_proj.weight")) << info.name;
    if (!packed) continue;
    ++matrices;
    EXPECT_EQ(info.format, "FP8_BLOCKS");
    EXPECT_EQ(values_per_block(*packed), kFp8LeastBlock);
    const int64_t row_blocks = (info.shape[0] + 127) / 128, blocks = (info.shape[1] + 127) / 128;
    EXPECT_EQ(info.stored_bytes, static_cast<uint64_t>(info.numel() + 4 * row_blocks * blocks));
    const SafetensorsEntry* entry = expected.find(info.name);
    if (entry == nullptr) continue;
    ++compared;
    const std::vector<float> values = read_all(*checkpoint, info);
    EXPECT_EQ(std::memcmp(values.data(), entry->bytes.data(), entry->bytes.size()), 0) << info.name;
  }
  EXPECT_EQ(matrices, 7U);
  EXPECT_EQ(compared, 3U);
}

class DamagedBlocks : public test::DamagedModel {
 protected:
  DamagedBlocks() : DamagedModel(kFp8) {}

  std::vector<float> values_of_down() {
    const auto checkpoint = open();
    for (const TensorInfo& info : checkpoint->tensors())
      if (info.name == kDownModule + ".weight") return read_all(*checkpoint, info);
    return {};
  }
};

TEST_F(DamagedBlocks, ScalesInSixteenBitsUnderTheOtherNameAndOneForAll) {
  const std::vector<float> whole = values_of_down();
  entries_[kDownScales] = {"F32", {2, 2}, scales_of({1, 2, 4, 8})};
  const std::vector<float> codes_of = values_of_down();
  entries_.erase(kDownScales);
  entries_[kDownModule + ".weight_scale"] = {"BF16", {2, 2}, {}};  // as compressed-tensors
  for (const uint16_t value : {0x3f80, 0x4000, 0x4080, 0x4100})
    entries_[kDownModule + ".weight_scale"].bytes += test::little_endian<uint16_t>(value);
  EXPECT_EQ(values_of_down(), codes_of);
  entries_.erase(kDownModule + ".weight_scale");
  entries_[kDownScales] = {"F32", {}, scales_of({0.5F})};
  entries_[kDownModule + ".activation_scale"] = {
      "F32", {}, scales_of({3})};  // of static activations
  const std::vector<float> halves = values_of_down();
  for (size_t i = 0; i < halves.size(); ++i) {
    const float scale = static_cast<float>(1 << (i / 150 / 128 * 2 + i % 150 / 128));
    ASSERT_EQ(halves[i], codes_of[i] / scale / 2) << i;
  }
  EXPECT_NE(whole, codes_of);
}

TEST_F(DamagedBlocks, ScalesThatAreMissingOrOfAnotherShape) {
  const auto whole = entries_;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{4}, {1, 4}, {4, 1}, {2, 2, 1}}) {
    entries_[kDownScales].shape = shape;
    expect_refused({"8-bit tensor `" + kDownModule + ".weight`", "its scales have the shape [",
                    "expected [2, 2]: one for each block of 128 rows and 128 columns",
                    "model.safetensors", "fix: download or copy the model again"});
  }
  entries_ = whole;
  entries_.erase(kDownScales);
  expect_refused({kDownModule + ".weight`", "`" + kDownModule + ".weight_scale` is missing",
                  "`" + kDownScales + "`"});
  entries_ = whole;
  entries_[kDownScales] = {"U8", {2, 2}, "xxxx"};  // exponents, as DeepSeek-V4 has them
  expect_refused({"`" + kDownScales + "` is stored as U8, expected F32, F16 or BF16"});
}

TEST_F(DamagedBlocks, ScalesThatAreNotNumbers) {
  for (const float value : {std::nanf(""), -1.0F, std::numeric_limits<float>::infinity()}) {
    entries_[kDownScales].bytes = scales_of({1, 1, value, 1});
    expect_refused({kDownModule + ".weight`", "the scale of block 2 is"});
  }
}

TEST_F(DamagedBlocks, CodesOfAnotherShape) {
  entries_.at(kDownModule + ".weight").shape = {150, 140};
  expect_refused({kDownModule, "[150, 140], expected [140, 150]", "different models"});
}

}  // namespace
}  // namespace sftrun::weights
