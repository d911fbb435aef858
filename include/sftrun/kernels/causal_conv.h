#pragma once

#include <ATen/core/Tensor.h>

#include "sftrun/kernels/delta_chunks.h"

/// Causal depthwise convolution over the tokens of each document, zero-padded at its start:
///     y[t] = sum_j weight[:, j] x[t - kernel + 1 + j]
namespace sftrun::kernels {

/// @param x [T, channels]   @param weight [channels, kernel]
/// @return [N, kChunk, channels] fp32; finite but arbitrary values at padding
at::Tensor causal_conv_forward(const at::Tensor& x, const at::Tensor& weight, const Chunks& chunks);

struct ConvGrads {
  at::Tensor x;       ///< [T, channels], dtype of x; undefined when !needs_dx
  at::Tensor weight;  ///< [channels, kernel] fp32; undefined when !needs_dweight
};
/// @param dy [N, kChunk, channels] fp32, 0 at padding
ConvGrads causal_conv_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                               const Chunks& chunks, bool needs_dx, bool needs_dweight);

}  // namespace sftrun::kernels
