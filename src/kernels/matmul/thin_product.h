#pragma once

#include "sftrun/kernels/ops.h"

/// x w^T for few rows of x (generation). A quantised w is multiplied in registers as it is decoded,
/// so it is read from memory once. CPU also supports a dense w, for which libraries are slow on
/// some processors if x has one row, and x w for a quantised w, a few megabytes of which are
/// dequantised at a time.
namespace sftrun::kernels {

bool thin_product_serves(const Product& term);
/// [rows, N] in x's dtype, summed in fp32, rounded once. In x w^T the values of w are not rounded
/// to x's dtype first, unlike with a dequantised w. Does not depend on the number of threads.
at::Tensor thin_product(const Product& term);

}  // namespace sftrun::kernels
