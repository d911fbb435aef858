#pragma once

#include "sftrun/kernels/ops.h"

/// Attention by our own CUDA kernels (attention_forward.cu, attention_backward.cu), for what
/// LibTorch's FlashAttention does not take: soft caps, fp32, heads of more than 256 channels or of
/// no multiple of 8. Memory grows with the number of tokens, and nothing waits for the device.
namespace sftrun::kernels {

/// Whether the kernels take heads of this many channels.
bool cuda_attention_serves(const AttentionShape& shape);

/// Rows of q, k and v may lie further apart than they are long.
/// @return lse: one tensor [heads, T] fp32
/// @throws c10::Error where shapes, types or devices do not go together
AttentionOutput cuda_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const BatchContext& batch,
                                       const AttentionShape& shape);
AttentionGrads cuda_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const AttentionOutput& saved, const BatchContext& batch,
                                       const AttentionShape& shape);

}  // namespace sftrun::kernels
