#include <gtest/gtest.h>

#include "damaged_model.h"

/// Experts in MXFP4 as gpt-oss ships them (scripts/fixtures/make_families.py), damaged.
namespace sftrun::weights {
namespace {

const std::string kExpertMatrix = "model.layers.0.mlp.experts.down_proj";
const std::string kBlocks = kExpertMatrix + "_blocks", kScales = kExpertMatrix + "_scales";

class DamagedMxfp4 : public test::DamagedModel {
 protected:
  DamagedMxfp4()
      : DamagedModel(std::filesystem::path(SFTRUN_TEST_DATA) / "families" / "gpt_oss_mxfp4") {}

  const TensorInfo& matrix(const Checkpoint& checkpoint) const {
    for (const TensorInfo& info : checkpoint.tensors())
      if (info.name == kExpertMatrix) return info;
    throw std::logic_error(kExpertMatrix);
  }
};

TEST_F(DamagedMxfp4, IsSoundUndamaged) {
  const auto checkpoint = open();
  EXPECT_EQ(matrix(*checkpoint).format, "MXFP4");
  EXPECT_TRUE(checkpoint->packed(kExpertMatrix).has_value());
}

TEST_F(DamagedMxfp4, MissingParts) {
  const auto whole = entries_;
  for (const std::string& part : {kBlocks, kScales}) {
    entries_ = whole;
    entries_.erase(part);
    expect_refused({"missing tensor `" + part + "`", "fix: the checkpoint is incomplete"});
  }
}

TEST_F(DamagedMxfp4, PartsOfAnotherTypeOrShape) {
  const auto whole = entries_;
  for (const std::string& part : {kBlocks, kScales}) {
    entries_ = whole;
    entries_.at(part).dtype = "I8";
    expect_refused({"`" + part + "` is stored as I8, expected U8 (MXFP4)", "download or copy"});
    entries_ = whole;
    std::swap(entries_.at(part).shape[0], entries_.at(part).shape[1]);
    expect_refused({"`" + part + "` has the shape [", "the configuration implies [3, "});
  }
}

/// 255 is no exponent: found when the matrix is read, not in training.
TEST_F(DamagedMxfp4, AScaleThatIsNaN) {
  entries_.at(kScales).bytes[5] = static_cast<char>(0xff);
  const auto checkpoint = open();
  test::expect_error([&] { test::read_all(*checkpoint, matrix(*checkpoint)); },
                     {"MXFP4 tensor `" + kExpertMatrix + "`: the scale of block 5 is NaN",
                      "fix: download or copy the model again"});
}

}  // namespace
}  // namespace sftrun::weights
