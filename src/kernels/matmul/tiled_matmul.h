#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sftrun/kernels/ops.h"

/// Tiled matrix products on CPU, of blocks (block_product.h) or with AMX; used by `matmul_sum` where
/// supported.
namespace sftrun::kernels {

/// Whether processor, dtype and shapes are supported: AVX2, at least 64 rows, and for bf16 an even
/// depth.
bool tiled_matmul_serves(const std::vector<Product>& terms);
bool tiled_matmul_serves(at::ScalarType dtype, int64_t rows, int64_t depth);
/// The same for any number of rows: where no code is compiled for each.
bool tiled_matmul_serves_few_rows(const std::vector<Product>& terms);
/// Factors of the sum of products, applied before residual and bias.
struct SumFactors {
  at::Tensor rows, columns;  ///< fp32 [T], [N], or undefined
};
/// @param out dtype of the operands, or fp32
void tiled_matmul_sum(const std::vector<Product>& terms, const at::Tensor& residual,
                      const at::Tensor& bias, at::Tensor& out, const SumFactors& factors = {});

}  // namespace sftrun::kernels
