#pragma once

#include "sftrun/kernels/ops.h"

namespace sftrun::kernels {

/// x w^T of a few rows (generation) and a w in fewer bits, each part of which is multiplied where
/// it is unpacked (the first-level cache; on CUDA registers), so that memory is read once and in as
/// few bits as it holds. On CPU x w, too, of which a few megabytes are unpacked at a time.
bool thin_quantized_serves(const Product& term);
/// [rows, N] in x's dtype; sums in fp32, rounded once. w's values in x w^T are not rounded to x's
/// dtype before, as they are where w is unpacked whole. Does not hang on the number of threads.
at::Tensor thin_quantized_product(const Product& term);

}  // namespace sftrun::kernels
