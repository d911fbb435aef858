#pragma once

#include <ATen/core/Tensor.h>

#include "sftrun/kernels/quant.h"

/// The CUDA kernels of each format, for operands that the caller has checked.
namespace sftrun::kernels {

/// @param out [rows, columns], with loose rows
void dequantize_on_cuda(const QuantizedMatrix& matrix, const at::Tensor& out);
/// x w^T for an x of few rows.   @pre cuda::thin_product_serves
at::Tensor thin_product_on_cuda(const at::Tensor& x, const QuantizedMatrix& w);

}  // namespace sftrun::kernels
