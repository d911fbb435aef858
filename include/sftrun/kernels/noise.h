#pragma once

#include "sftrun/kernels/ops.h"

namespace sftrun::kernels {

/// NEFTune (arXiv:2310.05914; transformers' integrations/neftune.py): adds to each value of x
/// [T, channels] uniform noise between -scale and scale * alpha / sqrt(L * channels), where L is
/// the number of tokens of its document. Counter-based like dropout: the same for a token of a
/// document in a step, wherever it is packed, to the bit on every device. Four values a Philox
/// call.
/// @param x contiguous   @param batch with token keys, on CUDA also cu_seqlens, on x's device
void add_embedding_noise_(at::Tensor& x, const BatchContext& batch, double alpha, double scale = 1);

}  // namespace sftrun::kernels
