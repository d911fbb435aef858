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
  EXPECT_EQ(quant_names(), (std::vector<std::string>{"nf4", "fp4", "fp8", "int8"}));
  for (const std::string& name : quant_names()) {
    ASSERT_NE(find_quant_format(name), nullptr);
    EXPECT_EQ(find_quant_format(name)->name, name);
  }
  EXPECT_EQ(find_quant_format("gguf"), nullptr) << "kept as files have it";
  EXPECT_EQ(find_quant_format(""), nullptr);
}

}  // namespace
}  // namespace sftrun
