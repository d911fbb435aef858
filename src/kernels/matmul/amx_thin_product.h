#pragma once

#include <ATen/core/Tensor.h>

/// x w^T of a dense w on AMX tile registers, for few rows of x: rows of w are the left operand, so
/// that they are packed without being transposed, and x is packed once.
namespace sftrun::kernels {

bool amx_thin_product_serves(const at::Tensor& x, const at::Tensor& w);
/// @return [rows of x, rows of w] in their dtype. Does not depend on the number of threads.
at::Tensor amx_thin_product(const at::Tensor& x, const at::Tensor& w);

}  // namespace sftrun::kernels
