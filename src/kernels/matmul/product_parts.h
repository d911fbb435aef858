#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "../row_kernels.h"
#include "sftrun/kernels/ops.h"
#include "tiled_matmul.h"

/// Shared code of the tiled implementations of `matmul_sum`.
namespace sftrun::kernels {

/// Operands of one product as raw memory.
template <typename T>
struct Operand {
  const T* x;
  const T* w;  ///< null if quantised
  int64_t x_stride, w_stride, depth;
  bool transposed;
  const QuantizedMatrix* quantized;
};

template <typename T>
std::vector<Operand<T>> operands_of(const std::vector<Product>& terms) {
  std::vector<Operand<T>> operands;
  for (const Product& term : terms) {
    const bool is_dense = term.w.quantized == nullptr;
    operands.push_back({static_cast<const T*>(term.x.const_data_ptr()),
                        is_dense ? static_cast<const T*>(term.w.dense.const_data_ptr()) : nullptr,
                        term.x.stride(0), is_dense ? term.w.dense.stride(0) : term.w.size(1),
                        term.x.size(1), term.transposed, term.w.quantized});
  }
  return operands;
}

template <typename T>
bool any_quantized(const std::vector<Operand<T>>& operands) {
  return std::any_of(operands.begin(), operands.end(),
                     [](const Operand<T>& o) { return o.quantized != nullptr; });
}

/// Dequantises depth [k, k + depth) of columns [first, first + count) of an operand, as it lies in
/// its matrix: [count, depth] if transposed, else [depth, count].   @return the row stride
template <typename T>
int64_t dequantize_columns(const Operand<T>& o, int64_t first, int64_t count, int64_t k,
                           int64_t depth, T* values) {
  if (o.transposed)
    dequantize_part(*o.quantized, first, count, k, depth, values, depth);
  else
    dequantize_part(*o.quantized, k, depth, first, count, values, count);
  return o.transposed ? depth : count;
}

/// A range of one operand's depth.
struct Piece {
  size_t operand;
  int64_t first, depth;
};
using Stage = std::vector<Piece>;  // as much depth as the packing buffer holds

/// @param max_depth depth of a stage
template <typename T>
std::vector<Stage> stages_of(const std::vector<Operand<T>>& operands, int64_t max_depth) {
  std::vector<Stage> stages(1);
  int64_t room = max_depth;
  for (size_t i = 0; i < operands.size(); ++i) {
    for (int64_t k = 0; k < operands[i].depth;) {
      if (room <= 0) {
        stages.emplace_back();
        room = max_depth;
      }
      const int64_t depth = std::min(room, operands[i].depth - k);
      stages.back().push_back({i, k, depth});
      k += depth;
      room -= depth;
    }
  }
  return stages;
}

/// Epilogue: out = sums * row_factors * column_factors + residual + bias, rounded once.
template <typename T>
struct ProductOutput {
  T* out;  ///< [num_rows, num_columns]
  int64_t num_rows, num_columns;
  const T* residual;  ///< [num_rows, num_columns], or null
  const T* bias;      ///< [num_columns], or null
  const float *row_factors, *column_factors;

  ProductOutput(const at::Tensor& target, const at::Tensor& residual_of, const at::Tensor& bias_of,
                const SumFactors& factors)
      : out(static_cast<T*>(target.data_ptr())),
        num_rows(target.size(0)),
        num_columns(target.size(1)),
        residual(values_of(residual_of)),
        bias(values_of(bias_of)),
        row_factors(floats_of(factors.rows)),
        column_factors(floats_of(factors.columns)) {}

  /// @param sums of rows [row, row + rows) and columns [column, column + columns), row stride
  /// `width`; scaled in place
  void finish(float* sums, int64_t width, int64_t row, int64_t rows, int64_t column,
              int64_t columns) const {
    scale(sums, width, row, rows, column, columns);
    const int64_t at = row * num_columns + column;
    row_kernels<T>().matmul.finish_product(sums, width, rows, columns,
                                           residual ? residual + at : nullptr,
                                           bias ? bias + column : nullptr, out + at, num_columns);
  }

 private:
  void scale(float* sums, int64_t width, int64_t row, int64_t rows, int64_t column,
             int64_t columns) const {
    if (row_factors == nullptr && column_factors == nullptr) return;
    for (int64_t r = 0; r < rows; ++r) {
      float* target = sums + r * width;
      const float factor = row_factors == nullptr ? 1.0F : row_factors[row + r];
      for (int64_t c = 0; c < columns; ++c)
        target[c] *= column_factors == nullptr ? factor : factor * column_factors[column + c];
    }
  }
  static const T* values_of(const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
  }
  static const float* floats_of(const at::Tensor& factors) {
    return factors.defined() ? factors.const_data_ptr<float>() : nullptr;
  }
};

}  // namespace sftrun::kernels
