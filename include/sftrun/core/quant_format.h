#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/rows.h"

/// The formats of quantised matrices: one row each, with all properties that need no LibTorch.
/// src/README.md lists the other places of a format.
namespace sftrun {

/// kNf4: 4 bits, quantiles of a normal distribution. kFp4: 4 bits, a float with one sign, two
/// exponent and one mantissa bit. kFp8 (e4m3), kInt8: 8 bits, with a scale per row. kFp8Blocks: e4m3
/// with a scale per block of rows and columns. kInt4Groups: integers of 4 bits with a scale and a zero
/// point for each group of a row. kGgml: one of ggml's types, each with a size of its own.
enum class QuantFormat : uint8_t { kNf4, kFp4, kFp8, kInt8, kFp8Blocks, kInt4Groups, kGgml };

struct QuantOptions {
  QuantFormat format = QuantFormat::kNf4;  ///< with `is_made`
  int64_t block_size = 64;                 ///< of formats with blocks; even
  bool nested = true;  ///< of formats that `can_nest`: quantise the block scales, too, to 8 bits
};

/// How safetensors files hold quantised matrices, and which `quantization_config` describes them.
/// kNone: no such file exists. kBitsandbytes4, kBitsandbytes8: as transformers + bitsandbytes save
/// them. kFp8Blocks: one scale per block of kFp8Block rows and columns (DeepSeek's and Qwen's FP8,
/// transformers' FineGrainedFP8Config). kCompressedFp8: compressed-tensors with one scale per row.
/// kAwq (version gemm), kGptq, kCompressedInt4 (compressed-tensors' pack-quantized): integers in groups,
/// which differ in how words hold them.
enum class QuantLayout : uint8_t {
  kNone,
  kBitsandbytes4,
  kBitsandbytes8,
  kFp8Blocks,
  kCompressedFp8,
  kAwq,
  kGptq,
  kCompressedInt4
};

/// Rows and columns of values that share a scale in kFp8Blocks. A smaller size, one that divides it,
/// gives parts that tensor parallelism cuts out of a block.
inline constexpr int64_t kFp8Block = 128;
/// Columns of kFp8Blocks are cut at multiples of this.
inline constexpr int64_t kFp8LeastBlock = 32;
/// Columns of kInt4Groups that stay together when columns are divided, so that kernels find whole bytes
/// and groups. 2 where any column can have any group, or all have one.   @param group columns, or more
constexpr int64_t int4_columns_together(int64_t group, int64_t columns) {
  constexpr int64_t kByte = 2, kMost = 32;
  const int64_t together = group < columns ? std::gcd(group, kMost) : kByte;
  return columns % kByte == 0 && together % kByte == 0 ? together : columns;
}

/// A `quantization_config` that stands for a layout.
struct QuantMethod {
  std::string_view name;             ///< `quant_method`
  std::string_view format = {};      ///< `format`; empty: any
  std::optional<bool> in_8bit = {};  ///< `load_in_8bit`; nullopt: any
};

struct QuantLayoutInfo {
  QuantLayout layout;
  std::string_view peft_name;          ///< in messages about what PEFT does not support
  bool peft_has_dora = false;          ///< PEFT supports DoRA on a base in this layout
  std::array<QuantMethod, 2> methods;  ///< of an unused one the name is empty

  constexpr bool is_described_by(std::string_view method, std::string_view format,
                                 bool in_8bit) const {
    return std::any_of(methods.begin(), methods.end(), [&](const QuantMethod& one) {
      return !one.name.empty() && one.name == method &&
             (one.format.empty() || one.format == format) &&
             one.in_8bit.value_or(in_8bit) == in_8bit;
    });
  }
};

/// In the order of the enumerators.
inline constexpr auto kQuantLayouts = std::to_array<QuantLayoutInfo>({
    {.layout = QuantLayout::kNone, .peft_name = "", .methods = {}},
    {.layout = QuantLayout::kBitsandbytes4,
     .peft_name = "4 bits",
     .peft_has_dora = true,
     .methods = {{{.name = "bitsandbytes", .in_8bit = false}}}},
    {.layout = QuantLayout::kBitsandbytes8,
     .peft_name = "int8",
     .methods = {{{.name = "bitsandbytes", .in_8bit = true}}}},
    {.layout = QuantLayout::kFp8Blocks,
     .peft_name = "FP8 in blocks",
     .methods = {{{.name = "fp8"}}}},
    {.layout = QuantLayout::kCompressedFp8,
     .peft_name = "FP8",
     .methods = {{{.name = "fbgemm_fp8"},
                  {.name = "compressed-tensors", .format = "float-quantized"}}}},
    {.layout = QuantLayout::kAwq, .peft_name = "AWQ", .methods = {{{.name = "awq"}}}},
    {.layout = QuantLayout::kGptq, .peft_name = "GPTQ", .methods = {{{.name = "gptq"}}}},
    {.layout = QuantLayout::kCompressedInt4,
     .peft_name = "packed integers",
     .methods = {{{.name = "compressed-tensors", .format = "pack-quantized"}}}},
});

constexpr const QuantLayoutInfo& layout_info(QuantLayout layout) {
  return kQuantLayouts[static_cast<size_t>(layout)];
}
static_assert(are_in_order(kQuantLayouts, &QuantLayoutInfo::layout));
/// kNone: no layout that is read.
QuantLayout layout_of_method(std::string_view method, std::string_view format, bool in_8bit);

/// Scales of blocks that share a scale of their own if they are nested.
inline constexpr int64_t kNestedBlock = 256;

struct QuantFormatInfo {
  QuantFormat format;
  std::string_view name;         ///< in configurations, on the command line and in files
  std::string_view stored_name;  ///< in messages about matrices that files hold
  std::string_view description;  ///< for help texts: "4 bits, ..."
  /// In messages about a base that a run cannot write: of formats without `is_made`.
  std::string_view kept_name = {};
  int bits = 0;  ///< of a code; 0: depends on ggml's type
  /// A run can quantise matrices to it. Other formats are kept as files have them.
  bool is_made = false;
  /// Blocks of consecutive values share a scale, across row boundaries, and a setting has their size.
  bool has_blocks = false;
  bool can_nest = false;            ///< the scales of blocks can be quantised, too
  bool rounds_activations = false;  ///< products round their other operand, too
  QuantLayout layout = QuantLayout::kNone;
  std::array<QuantLayout, 2> other_layouts = {};  ///< that are read, too; kNone: unused
  /// Bytes of codes and scales of a matrix in memory; null unless `options` say them.
  int64_t (*bytes)(int64_t rows, int64_t columns, const QuantOptions& options) = nullptr;

  /// `sftrun quantize` and `sftrun merge` write it.
  constexpr bool is_written() const { return is_made && layout != QuantLayout::kNone; }
  constexpr bool is_in(QuantLayout one) const {
    return layout == one ||
           std::find(other_layouts.begin(), other_layouts.end(), one) != other_layouts.end();
  }
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

/// @param options of which `block_size` columns of a row are a group
constexpr int64_t bytes_of_groups(int64_t rows, int64_t columns, const QuantOptions& options) {
  constexpr int64_t kGroupBytes = 4 + 1;  // a scale in fp32 and a zero point
  const int64_t groups = (columns + options.block_size - 1) / options.block_size;
  return rows * ((columns + 1) / 2 + groups * kGroupBytes);
}

/// In the order of the enumerators.
inline constexpr auto kQuantFormats = std::to_array<QuantFormatInfo>({
    {.format = QuantFormat::kNf4,
     .name = "nf4",
     .stored_name = "NF4",
     .description = "4 bits, quantiles of a normal distribution (bitsandbytes)",
     .bits = 4,
     .is_made = true,
     .has_blocks = true,
     .can_nest = true,
     .layout = QuantLayout::kBitsandbytes4,
     .bytes = bytes_of_blocks},
    {.format = QuantFormat::kFp4,
     .name = "fp4",
     .stored_name = "FP4",
     .description = "4-bit floats (bitsandbytes)",
     .bits = 4,
     .is_made = true,
     .has_blocks = true,
     .can_nest = true,
     .layout = QuantLayout::kBitsandbytes4,
     .bytes = bytes_of_blocks},
    {.format = QuantFormat::kFp8,
     .name = "fp8",
     .stored_name = "FP8",
     .description = "e4m3 with one scale per row; activations are rounded to e4m3, too "
                    "(compressed-tensors)",
     .bits = 8,
     .is_made = true,
     .rounds_activations = true,
     .layout = QuantLayout::kCompressedFp8,
     .bytes = bytes_of_rows},
    {.format = QuantFormat::kInt8,
     .name = "int8",
     .stored_name = "INT8",
     .description = "8-bit integers with one scale per row (bitsandbytes)",
     .bits = 8,
     .is_made = true,
     .layout = QuantLayout::kBitsandbytes8,
     .bytes = bytes_of_rows},
    {.format = QuantFormat::kFp8Blocks,
     .name = "fp8_blocks",
     .stored_name = "FP8_BLOCKS",
     .description = "e4m3 with one scale per block of 128 rows and columns",
     .kept_name = "FP8 in blocks",
     .bits = 8,
     .layout = QuantLayout::kFp8Blocks},
    {.format = QuantFormat::kInt4Groups,
     .name = "int4_groups",
     .stored_name = "INT4_GROUPS",
     .description = "4-bit integers with a scale and a zero point per group of a row",
     .kept_name = "4-bit integers in groups",
     .bits = 4,
     .layout = QuantLayout::kGptq,
     .other_layouts = {QuantLayout::kAwq, QuantLayout::kCompressedInt4},
     .bytes = bytes_of_groups},
    {.format = QuantFormat::kGgml,
     .name = "gguf",
     .stored_name = "",
     .description = "the blocks of a GGUF file",
     .kept_name = "ggml's blocks"},
});

constexpr const QuantFormatInfo& quant_info(QuantFormat format) {
  return kQuantFormats[static_cast<size_t>(format)];
}
static_assert(are_in_order(kQuantFormats, &QuantFormatInfo::format));

/// The format with `is_made` that has this name; null: there is none.
const QuantFormatInfo* find_quant_format(std::string_view name);
/// The first format whose matrices files hold in this layout.   @param layout not kNone
const QuantFormatInfo& first_format_of(QuantLayout layout);
/// The names of the formats with `is_made` for which `holds` is true, in the order of the table.
/// @param holds a property of a row, such as &QuantFormatInfo::can_nest
template <class Property>
std::vector<std::string> quant_names(Property holds) {
  std::vector<std::string> names;
  for (const QuantFormatInfo& info : kQuantFormats)
    if (info.is_made && std::invoke(holds, info)) names.emplace_back(info.name);
  return names;
}
/// The names of the formats that `sftrun quantize` and `sftrun merge` write.
inline std::vector<std::string> written_quant_names() {
  return quant_names(&QuantFormatInfo::is_written);
}
/// "nf4: 4 bits, .... fp4: ..."   @param names of formats
std::string quant_descriptions(const std::vector<std::string>& names);

}  // namespace sftrun
