#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "damaged_model.h"
#include "support/test_data.h"

/// Directories in eight bits (scripts/fixtures/make_eight_bits.py), whole and damaged.
namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using test::read_all;

using test::kModels;
const std::string kModule = "model.layers.1.mlp.up_proj";
const std::string kUpMatrix = kModule + ".weight";

TEST(EightBits, ReadAsTheReferencesUnpackThem) {
  test::expect_unpacked(kModels / "bnb-int8", "INT8");
  test::expect_unpacked(kModels / "fp8-dynamic", "FP8");
  for (const char* form : {"bnb-int8", "fp8-dynamic"}) {
    const auto checkpoint = Checkpoint::open(kModels / form);
    for (const TensorInfo& info : checkpoint->tensors()) {
      if (!checkpoint->packed(info.name)) continue;
      EXPECT_EQ(info.stored_bytes, static_cast<uint64_t>(info.numel() + 4 * info.shape[0]));
    }
  }
}

class DamagedInt8 : public test::DamagedModel {
 protected:
  DamagedInt8() : DamagedModel(kModels / "bnb-int8") {}
};
class DamagedFp8 : public test::DamagedModel {
 protected:
  DamagedFp8() : DamagedModel(kModels / "fp8-dynamic") {}
};

std::string floats(size_t count, float value) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += test::little_endian(value);
  return bytes;
}

TEST_F(DamagedInt8, MissingFactors) {
  entries_.erase(kModule + ".SCB");
  expect_refused({"8-bit tensor `" + kUpMatrix + "`", "`" + kModule + ".SCB` is missing",
                  "model.safetensors", "fix: download or copy the model again"});
}

TEST_F(DamagedInt8, FactorsOfAnotherModuleAreNotItsOwn) {
  entries_[kModule + ".weight_scale"] = entries_.at(kModule + ".SCB");
  entries_.erase(kModule + ".SCB");
  expect_refused({"`" + kModule + ".SCB` is missing"});
}

TEST_F(DamagedInt8, NormsAreNotInEightBits) {
  set("model.norm.weight", "I8", std::string(24, 'x'));
  expect_refused({"model.norm"});
}

TEST_F(DamagedInt8, AnotherShape) {
  entries_.at(kUpMatrix).shape = {24, 40};
  expect_refused({kUpMatrix, "[24, 40], expected [40, 24]", "different models"});
}

/// As a whole tensor has it, or in 16 bits, as llm-compressor writes them.
TEST_F(DamagedFp8, OneFactorAndFactorsInSixteenBits) {
  set(kModule + ".weight_scale", "F32", floats(1, 0.25F));
  const std::string other = "model.layers.0.mlp.up_proj";
  entries_[other + ".weight_scale"] = {"BF16", {40, 1}, {}};
  for (int i = 0; i < 40; ++i)
    entries_[other + ".weight_scale"].bytes += test::little_endian<uint16_t>(0x3f00);  // 0.5
  entries_[kModule + ".input_scale"] = {"F32", {1}, floats(1, 3)};  // of static activations
  const auto checkpoint = open();
  for (const TensorInfo& info : checkpoint->tensors()) {
    if (info.name != kUpMatrix && info.name != other + ".weight") continue;
    const float factor = info.name == kUpMatrix ? 0.25F : 0.5F;
    const std::string& codes = entries_.at(info.name).bytes;
    const std::vector<float> values = read_all(*checkpoint, info);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto code = static_cast<uint8_t>(codes[i]);
      if ((code & 0x7f) != 0x38) continue;  // 1 and -1
      EXPECT_EQ(values[i], code == 0x38 ? factor : -factor);
    }
  }
}

TEST_F(DamagedFp8, ScalesThatAreNotNumbers) {
  const auto whole = entries_;
  const std::string factors = kModule + ".weight_scale";
  for (const float value : {std::nanf(""), -1.0F, std::numeric_limits<float>::infinity()}) {
    entries_ = whole;
    set(factors, "F32", floats(39, 1) + floats(1, value));
    expect_refused({kUpMatrix, "the scale of row 39 is"});
  }
  entries_ = whole;
  set(factors, "F32", floats(39, 1));
  expect_refused({kUpMatrix, "its scales have the shape [39], expected [40] (one per row)",
                  "fix: use a checkpoint with one scale per row"});
  // As many as rows, but of blocks: one way and the other.
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{2, 20}, {1, 40}, {40, 1, 1}, {4, 10}}) {
    entries_[factors] = {"F32", shape, floats(40, 1)};
    expect_refused({kUpMatrix, "its scales have the shape ["});
  }
  set(factors, "U8", std::string(40, 'x'));
  expect_refused({"`" + factors + "` is stored as U8, expected F32, F16 or BF16"});
  entries_ = whole;
  entries_.erase(factors);
  expect_refused({"`" + factors + "` is missing"});
}

/// Scales of two kinds.
TEST_F(DamagedFp8, OtherLayoutsOfFactors) {
  entries_[kModule + ".weight_scale_inv"] = {"F32", {1, 1}, floats(1, 1)};
  expect_refused({kModule + ".weight_scale"});
}

}  // namespace
}  // namespace sftrun::weights
