#pragma once

#include "sftrun/kernels/ops.h"

namespace sftrun::kernels {

/// NEFTune (arXiv:2310.05914; transformers' integrations/neftune.py): adds to each value of x
/// [T, channels] uniform noise between -scale and scale * alpha / sqrt(L * channels), where L is
/// the number of tokens of its document. Counter-based like dropout: the same for a token of a
/// document in a step, wherever it is packed. Drawn on the CPU, four values a Philox call.
void add_embedding_noise_(at::Tensor& x, const BatchContext& batch, double alpha, double scale = 1);

}  // namespace sftrun::kernels
