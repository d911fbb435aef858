#pragma once

#include "sftrun/kernels/ops.h"

/// Products with a frozen e4m3 matrix W (QuantFormat::kFp8). x is rounded to e4m3, too, with one
/// scale per row; codes are multiplied with fp32 accumulation, then the scales are applied.
///   forward   x W^T
///   backward  g W: the scales of W's rows lie along the summed dimension, so they multiply g
/// before
///             it is rounded; the codes of W are those of the forward pass.
/// CUDA from sm_89 on uses the hardware's FP8 products, for bf16 and dimensions that are multiples
/// of 16. Elsewhere codes are multiplied in the compute dtype, which represents them exactly.
namespace sftrun::kernels {

bool is_fp8(const Product& term);
/// Whether the hardware computes x W, for which the codes of W must be transposed.
/// @pre is_fp8(term)
bool multiplies_transposed_codes(const Product& term);
/// residual + bias + the product; rounded once with own CPU kernels, else before each addition.
/// @pre is_fp8(term)
at::Tensor fp8_product(const Product& term, const at::Tensor& residual, const at::Tensor& bias);

}  // namespace sftrun::kernels
