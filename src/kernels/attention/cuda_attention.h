#pragma once

#include "sftrun/kernels/ops.h"

/// Attention by own CUDA kernels (attention_forward.cu, attention_backward.cu), for what LibTorch's
/// FlashAttention does not support: soft caps, fp32, head_dim above 256 or not a multiple of 8, spans
/// that are seen both ways.
/// Memory is linear in the number of tokens; no synchronisation.
namespace sftrun::kernels {

/// Whether the kernels support this head_dim: up to 512, and up to 256 with spans that are seen both
/// ways.
bool cuda_attention_serves(const AttentionShape& shape, bool both_ways);

/// q, k and v may have a row stride greater than the row length.
/// @return lse: one tensor [heads, T] fp32
/// @throws c10::Error if shapes, dtypes or devices do not match
AttentionOutput cuda_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const BatchMetadata& batch,
                                       const AttentionShape& shape);
AttentionGrads cuda_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const AttentionOutput& saved, const BatchMetadata& batch,
                                       const AttentionShape& shape);

}  // namespace sftrun::kernels
