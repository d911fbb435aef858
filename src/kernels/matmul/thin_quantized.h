#pragma once

#include "sftrun/kernels/ops.h"

namespace sftrun::kernels {

/// x w^T, or x w, of a few rows and a w in fewer bits, on a CPU. For x w^T (generation) each part
/// of a row of w is unpacked into the first-level cache and multiplied there, so that memory is
/// read once and in as few bits as it holds; for x w a few megabytes are unpacked at a time.
bool thin_quantized_serves(const Product& term);
/// [rows, N] in x's dtype; sums in fp32, rounded once. Does not hang on the number of threads.
at::Tensor thin_quantized_product(const Product& term);

}  // namespace sftrun::kernels
