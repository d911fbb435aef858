#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sftrun/kernels/ops.h"

/// Products on CPU over LibTorch's brgemm (oneDNN's batch-reduce product): what `matmul_sum` runs
/// where it serves.
namespace sftrun::kernels {

/// Whether this processor, dtype and these shapes are served: AVX-512 (for bf16 its bf16
/// instructions), at least one block of rows, and for bf16 even depths.
bool tiled_matmul_serves(const std::vector<Product>& terms);
bool tiled_matmul_serves(at::ScalarType dtype, int64_t rows, int64_t depth);
/// What multiplies the sum of the products, before residual and bias.
struct SumFactors {
  at::Tensor rows, columns;  ///< fp32 [T], [N], or undefined
};
/// @param out of the operands' dtype, or fp32
void tiled_matmul_sum(const std::vector<Product>& terms, const at::Tensor& residual,
                      const at::Tensor& bias, at::Tensor& out, const SumFactors& factors = {});

}  // namespace sftrun::kernels
