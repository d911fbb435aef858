#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>

#include "../formats/cuda_formats.h"
#include "../formats/format_ops.h"
#include "packed.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/quant.h"
#include "thin_product.h"

/// Views of a `QuantizedMatrix` for the launchers of CUDA kernels. Not included by nvcc, which needs
/// half a minute to parse ATen's headers.
namespace sftrun::kernels::cuda {

template <typename T>
const T* pointer_or_null(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<T>() : nullptr;
}

/// The values of the codes of a 4-bit matrix; zeros if its format has no table.
inline FourBitTables four_bit_tables(const QuantizedMatrix& matrix) {
  FourBitTables tables{};
  const std::span<const float> values = quant_table(matrix.format);
  if (values.empty()) return tables;
  SFTRUN_CHECK(values.size() == std::size(tables.values));
  std::copy(values.begin(), values.end(), tables.values);
  if (matrix.is_nested()) std::copy_n(nested_map().const_data_ptr<float>(), 256, tables.nested);
  return tables;
}

/// The view with `tables` still null.
inline FourBitView four_bit_view(const QuantizedMatrix& matrix) {
  return {.packed = matrix.packed.const_data_ptr<uint8_t>(),
          .absmax = pointer_or_null<float>(matrix.absmax),
          .codes = pointer_or_null<uint8_t>(matrix.codes),
          .nested_absmax = pointer_or_null<float>(matrix.nested_absmax),
          .offset = matrix.offset,
          .block_size = matrix.block_size,
          .first_block = matrix.first_block,
          .rows = matrix.rows,
          .columns = matrix.columns,
          .block_shift = std::has_single_bit(static_cast<uint64_t>(matrix.block_size))
                             ? std::countr_zero(static_cast<uint64_t>(matrix.block_size))
                             : -1,
          .nested_shift = std::countr_zero(static_cast<uint64_t>(matrix.nested_block)),
          .tables = nullptr};
}

/// @param form of the matrix' format
inline EightBitView eight_bit_view(const QuantizedMatrix& matrix, EightBits form) {
  return {.codes = matrix.packed.const_data_ptr<uint8_t>(),
          .scales = pointer_or_null<float>(matrix.absmax),
          .rows = matrix.rows,
          .columns = matrix.columns,
          .form = form};
}

/// @pre the matrix is in kFp8Blocks, and its block size is a power of two
inline Fp8BlockView fp8_block_view(const QuantizedMatrix& matrix) {
  return {.codes = matrix.packed.const_data_ptr<uint8_t>(),
          .scales = matrix.absmax.const_data_ptr<float>(),
          .block_rows = matrix.block_rows.const_data_ptr<int32_t>(),
          .rows = matrix.rows,
          .columns = matrix.columns,
          .blocks_of_row = matrix.blocks_of_row(),
          .block_shift = std::countr_zero(static_cast<uint64_t>(matrix.block_size))};
}

/// @pre the matrix is in kInt4Groups, and has rows
inline Int4GroupView int4_group_view(const QuantizedMatrix& matrix) {
  return {.packed = matrix.packed.const_data_ptr<uint8_t>(),
          .scales = matrix.absmax.const_data_ptr<float>(),
          .zeros = matrix.zeros.const_data_ptr<uint8_t>(),
          .column_groups = pointer_or_null<int32_t>(matrix.column_groups),
          .rows = matrix.rows,
          .columns = matrix.columns,
          .groups_of_row = matrix.absmax.numel() / matrix.rows,
          .group_size = matrix.block_size};
}

/// Whether the kernels can compute x [T, K] w^T: at most kMaxThinTokens tokens, rows of whole
/// groups of eight values, and aligned memory.
inline bool thin_product_serves(const at::Tensor& x, const QuantizedMatrix& w) {
  constexpr uintptr_t kLoad = 16;  // bytes of x read at once
  const auto size = static_cast<int64_t>(x.element_size());
  const bool tokens_are_aligned = reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kLoad == 0 &&
                                  x.stride(0) * size % static_cast<int64_t>(kLoad) == 0;
  if (x.size(0) > kMaxThinTokens || x.stride(1) != 1 || !tokens_are_aligned) return false;
  return ops_of(w).cuda->has_whole_groups(w);
}

}  // namespace sftrun::kernels::cuda
