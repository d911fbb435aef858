#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// The formats of quantised matrices: one row each, with what can be said of a format without
/// LibTorch. src/README.md says where the rest of a format is.
namespace sftrun {

/// kNf4: 4 bits, quantiles of a normal distribution. kFp4: 4 bits, a float with one sign, two
/// exponent and one mantissa bit. kFp8 (e4m3), kInt8: 8 bits. kGgml: one of ggml's types, each with
/// a size of its own.
enum class QuantFormat : uint8_t { kNf4, kFp4, kFp8, kInt8, kGgml };

struct QuantOptions {
  QuantFormat format = QuantFormat::kNf4;  ///< one that `is_made`
  int64_t block_size = 64;                 ///< of formats with blocks; even
  bool nested = true;  ///< of formats with blocks: quantise the block scales, too, to 8 bits
};

/// Scales of blocks that share a scale of their own if they are nested.
inline constexpr int64_t kNestedBlock = 256;

struct QuantFormatInfo {
  QuantFormat format;
  std::string_view name;         ///< in configurations, on the command line and in files
  std::string_view stored_name;  ///< of matrices that files hold, in messages
  std::string_view peft_name;    ///< of a base in this format, in lines about PEFT
  int bits;                      ///< of a code; 0: that depends on ggml's type
  bool is_made;  ///< matrices can be quantised to it; others are kept as files have them
  /// Blocks of consecutive values share a scale, across row boundaries; else each row has its own.
  bool has_blocks;
  bool rounds_activations;  ///< products round their other operand, too
  /// Bytes of codes and scales of a matrix; null unless `is_made`.
  int64_t (*bytes)(int64_t rows, int64_t columns, const QuantOptions& options);
};

constexpr int64_t bytes_of_blocks(int64_t rows, int64_t columns, const QuantOptions& options) {
  constexpr int64_t kScaleBytes = 4;  // fp32
  const int64_t values = rows * columns,
                blocks = (values + options.block_size - 1) / options.block_size,
                nested = (blocks + kNestedBlock - 1) / kNestedBlock;
  return (values + 1) / 2 + (options.nested ? blocks + nested * kScaleBytes : blocks * kScaleBytes);
}

constexpr int64_t bytes_of_rows(int64_t rows, int64_t columns, const QuantOptions& /*options*/) {
  constexpr int64_t kScaleBytes = 4;
  return rows * columns + rows * kScaleBytes;
}

/// In the order of the enumerators.
inline constexpr auto kQuantFormats = std::to_array<QuantFormatInfo>({
    {QuantFormat::kNf4, "nf4", "NF4", "4 bits", 4, true, true, false, bytes_of_blocks},
    {QuantFormat::kFp4, "fp4", "FP4", "4 bits", 4, true, true, false, bytes_of_blocks},
    {QuantFormat::kFp8, "fp8", "FP8", "FP8", 8, true, false, true, bytes_of_rows},
    {QuantFormat::kInt8, "int8", "INT8", "int8", 8, true, false, false, bytes_of_rows},
    {QuantFormat::kGgml, "gguf", "", "", 0, false, false, false, nullptr},
});

constexpr const QuantFormatInfo& quant_info(QuantFormat format) {
  return kQuantFormats[static_cast<size_t>(format)];
}
static_assert([] {
  for (size_t i = 0; i < kQuantFormats.size(); ++i)
    if (kQuantFormats[i].format != static_cast<QuantFormat>(i)) return false;
  return true;
}());

/// The format to which matrices can be quantised that has this name; null: there is none.
const QuantFormatInfo* find_quant_format(std::string_view name);
/// The names of all such formats: nf4, fp4, fp8, int8.
std::vector<std::string> quant_names();

}  // namespace sftrun
