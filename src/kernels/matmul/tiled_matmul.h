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
/// The same for any number of rows. False where a block product is compiled for each shape.
bool tiled_matmul_serves_few_rows(const Product& term);
/// Factors of the sum of products, applied before residual and bias.
struct SumFactors {
  at::Tensor rows, columns;  ///< fp32 [T], [N], or undefined
};
/// @param out dtype of the operands, or fp32
void tiled_matmul_sum(const std::vector<Product>& terms, const at::Tensor& residual,
                      const at::Tensor& bias, at::Tensor& out, const SumFactors& factors = {});

/// Whether `add_tiled_matmul_tn` supports processor, dtype and strides.
bool tiled_matmul_tn_serves(const at::Tensor& g, const at::Tensor& x);
/// out [N, K] fp32 += g^T x, g [T, N], x [T, K].   @param out contiguous
void add_tiled_matmul_tn(at::Tensor& out, const at::Tensor& g, const at::Tensor& x);

}  // namespace sftrun::kernels
