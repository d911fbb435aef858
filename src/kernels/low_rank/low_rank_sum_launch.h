#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace sftrun::kernels::cuda {

inline constexpr int64_t kMaxLowRank = 64;  ///< of LowRankSum::rank
/// y += base + low F in bf16 or fp16, rounded once, for a factor F [rank, columns] of few rows.
struct LowRankSum {
  void* y;           ///< [rows, columns], row stride y_stride in elements
  const void* base;  ///< the same, row stride base_stride; null: zeros
  const void* low;   ///< [rows, rank], row stride low_stride
  /// [rank, columns], row stride factor_stride; if is_transposed [columns, rank]
  const void* factor;
  int64_t rows, columns, rank;  ///< rank and columns: multiples of 8
  int64_t y_stride, base_stride, low_stride, factor_stride;
  bool is_transposed;
};
/// @pre bf16 or fp16; all addresses and row strides are multiples of 16 bytes
void launch_low_rank_sum(Type type, const LowRankSum& sum, Stream stream);

}  // namespace sftrun::kernels::cuda
