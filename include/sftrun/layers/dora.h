#pragma once

#include "sftrun/layers/embedding.h"
#include "sftrun/layers/linear.h"

namespace sftrun::layers {

/// Row norms |W + scale B A| [out_features] fp32. No matrix of W's size is stored:
///     |w + u|^2 = |w|^2 + 2 w u + |u|^2,   with w u = (W A^T) b and |u|^2 = b (A A^T) b
/// for a row w of W and a row b of scale B, u = b A. Reads W once; costs as much as multiplying W
/// by r tokens.
/// @param linear has an adapter with a DoRA magnitude
at::Tensor row_lengths(const Linear& linear);
/// Column norms [hidden] fp32 of an embedding's table plus its adapter's update; A is [r, vocab].
at::Tensor column_lengths(const Embedding& embedding);

/// Sum of squares of each row of W [out_features] fp32.
at::Tensor row_squares(const Linear& linear);
/// Sum of squares of each column of the table [hidden] fp32.
at::Tensor column_squares(const Embedding& embedding);

/// magnitude / lengths, fp32, of the shape of `lengths`
at::Tensor gains_of(const LoraAdapter& lora, const at::Tensor& lengths);

}  // namespace sftrun::layers
