#pragma once

#include "sftrun/kernels/ops.h"

/// Attention composed of LibTorch's operations, in fp32, one group of heads of one document at a
/// time: for what no kernel at hand computes (heads of more than 512 channels on CUDA, windows in odd
/// head sizes on CPU). Memory grows with the square of the longest document.
namespace sftrun::kernels {

/// lse is empty.
AttentionOutput composed_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const BatchContext& batch,
                                           const AttentionShape& shape);
AttentionGrads composed_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                           const at::Tensor& k, const at::Tensor& v,
                                           const AttentionOutput& saved, const BatchContext& batch,
                                           const AttentionShape& shape);

}  // namespace sftrun::kernels
