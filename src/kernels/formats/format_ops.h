#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "sftrun/kernels/quant.h"

/// The operations of each quantised format. A format has one `FormatOps`, which points to functions
/// in a file of this folder, and an entry in `kFormatOps`. Formats that differ only in a table or
/// in rounding share a file. blocks.h has functions for formats with blocks. The other properties of
/// a format are in sftrun/core/quant_format.h.
namespace sftrun::kernels {

struct FormatLaunches;  // cuda_formats.h

/// Values [row, row + rows) x [column, column + columns): see `dequantize_part`.
template <typename T>
using UnpackPart = void (*)(const QuantizedMatrix& matrix, int64_t row, int64_t rows,
                            int64_t column, int64_t columns, T* out, int64_t stride);

/// Looked up once per call on a matrix or a part of it, never per value.
struct FormatOps {
  QuantFormat format;
  /// @pre `kernels::quantize` has checked the arguments.   Null unless `QuantFormatInfo::is_made`
  QuantizedMatrix (*quantize)(const at::Tensor& weight, const QuantOptions& options,
                              const std::string& name);
  UnpackPart<float> unpack_fp32;
  UnpackPart<uint16_t> unpack_bf16;
  /// row_bytes, splits_at, narrow: QuantizedMatrix has members of the same names.
  int64_t (*row_bytes)(const QuantizedMatrix& matrix);  ///< null: rows may share a byte
  bool (*splits_at)(const QuantizedMatrix& matrix, int64_t num_rows);
  QuantizedMatrix (*narrow)(const QuantizedMatrix& matrix, int64_t first, int64_t count);
  /// Copies rows into a new matrix.   @param rows indices [N]   @pre matrix.splits_at(1)
  QuantizedMatrix (*select_rows)(const QuantizedMatrix& matrix, const at::Tensor& rows);
  /// QuantizedMatrix has members of the same names.
  int64_t (*values_per_block)(const QuantizedMatrix& matrix);
  QuantizedMatrix (*part)(const QuantizedMatrix& matrix, const TensorSlice& slice);
  /// Throws unless the tensors have the sizes that rows and columns imply.
  void (*require_sizes)(const QuantizedMatrix& matrix);
  /// Whether rows are whole groups, so that `thin_product` can decode them.
  bool (*has_whole_groups)(const QuantizedMatrix& matrix);
  /// x w^T for few rows of x, on CPU.   @pre has_whole_groups(w)   Null: no matrix has such rows
  at::Tensor (*thin_product)(const at::Tensor& x, const QuantizedMatrix& w);
  std::span<const float> table = {};     ///< the codes' values; empty: they are computed
  const FormatLaunches* cuda = nullptr;  ///< null: matrices of the format stay on the CPU
};

extern const FormatOps kNf4Ops, kFp4Ops;   // four_bits.cpp
extern const FormatOps kFp8Ops, kInt8Ops;  // eight_bits.cpp
extern const FormatOps kFp8BlocksOps;      // fp8_blocks.cpp
extern const FormatOps kInt4GroupsOps;     // int4_groups.cpp
extern const FormatOps kGgmlOps;           // ggml_blocks.cpp

/// One entry for each format, in the order of the enumerators.
inline constexpr auto kFormatOps = std::to_array<const FormatOps*>(
    {&kNf4Ops, &kFp4Ops, &kFp8Ops, &kInt8Ops, &kFp8BlocksOps, &kInt4GroupsOps, &kGgmlOps});
static_assert(kFormatOps.size() == kQuantFormats.size());

inline const FormatOps& ops_of(QuantFormat format) {
  return *kFormatOps[static_cast<size_t>(format)];
}
inline const FormatOps& ops_of(const QuantizedMatrix& matrix) {
  return ops_of(matrix.format);
}

}  // namespace sftrun::kernels
