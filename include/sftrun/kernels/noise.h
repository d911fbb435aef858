#pragma once

#include "sftrun/kernels/ops.h"

namespace sftrun::kernels {

/// NEFTune noise (arXiv:2310.05914; transformers' integrations/neftune.py), in place:
///     x += u * scale * alpha / sqrt(L * channels),   u uniform in [-1, 1)
/// where L is the number of tokens of the document. x [T, channels]. Counter-based like dropout: a
/// token's noise depends only on seed, step, document, position and channel, and is bit-identical
/// for every packing and device. One Philox call yields four values.
/// @param x contiguous   @param batch token keys, and on CUDA cu_seqlens, on the device of x
void add_embedding_noise_(at::Tensor& x, const BatchMetadata& batch, double alpha,
                          double scale = 1);

}  // namespace sftrun::kernels
