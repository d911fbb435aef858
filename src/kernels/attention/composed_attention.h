#pragma once

#include "sftrun/kernels/ops.h"

/// Attention composed of LibTorch operations in fp32, one group of heads of one document at a time.
/// Fallback for what no kernel supports: head_dim above 512 on CUDA, or above 256 where spans are seen
/// both ways; windows, soft caps or such spans with a head_dim or processor that tiled attention does
/// not support on CPU. Memory is quadratic in the
/// length of the longest document.
namespace sftrun::kernels {

/// lse: one tensor [heads, T] fp32.
AttentionOutput composed_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const BatchMetadata& batch,
                                           const AttentionShape& shape);
AttentionGrads composed_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                           const at::Tensor& k, const at::Tensor& v,
                                           const AttentionOutput& saved, const BatchMetadata& batch,
                                           const AttentionShape& shape);

}  // namespace sftrun::kernels
