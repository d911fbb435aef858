#include "sftrun/core/dtype.h"

#include <gtest/gtest.h>

#include <optional>

namespace sftrun {
namespace {

TEST(DTypeNames, OfEachLibrary) {
  EXPECT_EQ(name_of(DType::kBF16), "bf16");
  EXPECT_EQ(torch_name_of(DType::kBF16), "bfloat16");
  EXPECT_EQ(safetensors_name_of(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(name_of(DType::kOther), "other");
}

TEST(DTypeNames, AnyNameOfAFloatIsUnderstood) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(float_dtype_named(name_of(dtype)), dtype);
    EXPECT_EQ(float_dtype_named(torch_name_of(dtype)), dtype);
    EXPECT_EQ(float_dtype_named(safetensors_name_of(dtype)), dtype);
  }
  EXPECT_EQ(float_dtype_named("f16"), DType::kF16);
  EXPECT_EQ(float_dtype_named("int8"), std::nullopt);
  EXPECT_EQ(float_dtype_named("auto"), std::nullopt);
  EXPECT_EQ(float_dtype_named(""), std::nullopt);
}

}  // namespace
}  // namespace sftrun
