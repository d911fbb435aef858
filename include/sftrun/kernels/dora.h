#pragma once

#include "sftrun/kernels/embedding.h"
#include "sftrun/kernels/linear.h"

namespace sftrun::kernels {

/// |W + scale B A| of each row [out_features] fp32. No matrix of W's size is formed:
///     |w + u|^2 = |w|^2 + 2 w u + |u|^2,   with w u = (W A^T) b and |u|^2 = b (A A^T) b
/// for a row b of scale B. Reads W once and does as much as r tokens' product.
/// @param linear with an adapter that has a magnitude
at::Tensor row_lengths(const Linear& linear);
/// The same of the columns of an embedding's table and its update [hidden], A of which is
/// [r, vocab].
at::Tensor column_lengths(const Embedding& embedding);

/// The sum of the squares of W's rows [out_features] fp32.
at::Tensor row_squares(const Linear& linear);
/// Of its columns [hidden] fp32.
at::Tensor column_squares(const Embedding& embedding);

/// magnitude / lengths [out_features] fp32
at::Tensor gains_of(const LoraAdapter& lora, const at::Tensor& lengths);

}  // namespace sftrun::kernels
