#pragma once

#include "sftrun/kernels/ops.h"

/// Products by a frozen matrix in e4m3 (QuantFormat::kFp8): x is rounded to e4m3, too, with a
/// factor for each of its rows, codes are multiplied by codes into fp32, and factors multiply the
/// sums. In the backward pass, x W, the matrix' factors lie along what is summed over: they
/// multiply x before it is rounded, and the codes are those of the forward pass. On CUDA from sm_89
/// on in the hardware's FP8 products, for bf16 and whole groups of 16; elsewhere codes are
/// multiplied in the compute dtype, which holds them exactly.
namespace sftrun::kernels {

bool is_fp8(const Product& term);
/// Whether the hardware multiplies x by w itself, for which w's codes are turned.   @pre
/// is_fp8(term)
bool multiplies_turned_codes(const Product& term);
/// residual + bias + the product, rounded once on a CPU with own kernels, elsewhere before each
/// sum.   @pre is_fp8(term)
at::Tensor fp8_product(const Product& term, const at::Tensor& residual, const at::Tensor& bias);

}  // namespace sftrun::kernels
