#include "sftrun/core/quant_format.h"

#include <gtest/gtest.h>

namespace sftrun {
namespace {

TEST(QuantFormat, BytesOfCodesAndScales) {
  const auto bytes = [](QuantFormat format, int64_t rows, int64_t columns,
                        const QuantOptions& options) {
    return quant_info(format).bytes(rows, columns, options);
  };
  // 513 blocks of 64: codes, scales of 1 byte, and 3 scales of those
  EXPECT_EQ(bytes(QuantFormat::kNf4, 513, 64, {}), 513 * 32 + 513 + 3 * 4);
  EXPECT_EQ(bytes(QuantFormat::kNf4, 513, 64, {.nested = false}), 513 * 32 + 513 * 4);
  EXPECT_EQ(bytes(QuantFormat::kFp4, 3, 33, {.block_size = 32, .nested = false}), 50 + 4 * 4)
      << "blocks cross rows";
  for (const QuantFormat format : {QuantFormat::kFp8, QuantFormat::kInt8})
    EXPECT_EQ(bytes(format, 5, 7, {}), 5 * 7 + 5 * 4);
}

TEST(QuantFormat, NamesAreOfFormatsThatAreMade) {
  using Names = std::vector<std::string>;
  const Names made = quant_names(&QuantFormatInfo::is_made);
  EXPECT_EQ((Names{made.begin(), made.begin() + 4}), (Names{"nf4", "fp4", "fp8", "int8"}));
  for (const std::string& name : made) {
    ASSERT_NE(find_quant_format(name), nullptr);
    EXPECT_EQ(find_quant_format(name)->name, name);
    EXPECT_NE(find_quant_format(name)->description, "");
  }
  EXPECT_EQ(quant_descriptions({"nf4", "fp4"}),
            "nf4: 4 bits, quantiles of a normal distribution (bitsandbytes). fp4: 4-bit floats "
            "(bitsandbytes)");
  EXPECT_EQ(quant_names(&QuantFormatInfo::can_nest), (Names{"nf4", "fp4"}));
  for (const std::string& name : written_quant_names())
    EXPECT_NE(find_quant_format(name)->layout, QuantLayout::kNone);
  EXPECT_EQ(find_quant_format("gguf"), nullptr) << "kept as files have it";
  EXPECT_EQ(find_quant_format(""), nullptr);
}

TEST(QuantFormat, LayoutsAreKnownByTheirMethods) {
  using enum QuantLayout;
  EXPECT_EQ(layout_of_method("bitsandbytes", "", false), kBitsandbytes4);
  EXPECT_EQ(layout_of_method("bitsandbytes", "", true), kBitsandbytes8);
  EXPECT_EQ(layout_of_method("compressed-tensors", "float-quantized", false), kCompressedFp8);
  EXPECT_EQ(layout_of_method("compressed-tensors", "pack-quantized", false), kCompressedInt4);
  EXPECT_EQ(layout_of_method("compressed-tensors", "nvfp4-pack-quantized", false), kNone);
  EXPECT_EQ(layout_of_method("gptq", "", false), kGptq);
  EXPECT_EQ(layout_of_method("awq", "", false), kAwq);
  EXPECT_EQ(layout_of_method("fbgemm_fp8", "", true), kCompressedFp8);
  EXPECT_EQ(layout_of_method("mxfp4", "", false), kNone);
  EXPECT_EQ(layout_of_method("", "", false), kNone) << "rows leave the names of methods empty";
  EXPECT_EQ(first_format_of(kBitsandbytes4).format, QuantFormat::kNf4);
  EXPECT_EQ(first_format_of(kCompressedFp8).format, QuantFormat::kFp8);
  for (const QuantLayout layout : {kAwq, kGptq, kCompressedInt4})
    EXPECT_EQ(first_format_of(layout).format, QuantFormat::kInt4Groups);
}

}  // namespace
}  // namespace sftrun
