#pragma once

#include "sftrun/kernels/ops.h"

/// x w^T of a few rows (generation). Each part of a w in fewer bits is multiplied where it is
/// unpacked (registers), so that memory is read once and in as few bits as it holds. On CPU also of
/// a dense w, where libraries are slow for one row on some processors, and x w of one in fewer
/// bits, of which a few megabytes are unpacked at a time.
namespace sftrun::kernels {

bool thin_product_serves(const Product& term);
/// [rows, N] in x's dtype; sums in fp32, rounded once. w's values in x w^T are not rounded to x's
/// dtype before, as they are where w is unpacked whole. Does not hang on the number of threads.
at::Tensor thin_product(const Product& term);

}  // namespace sftrun::kernels
