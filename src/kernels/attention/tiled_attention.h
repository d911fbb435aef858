#pragma once

#include "sftrun/kernels/ops.h"

/// Causal attention on CPU in tiles of 64 x 64 on oneDNN's block products
/// (at::native::cpublas::brgemm): whole tiles above the diagonal or before the window are skipped,
/// which LibTorch's own kernel computes. Operands are packed and padded with zeros to whole tiles,
/// so that every product has one of a few shapes, whatever the documents' lengths (each new shape
/// would be compiled at run time).
namespace sftrun::kernels {

/// Whether this processor and these sizes suit it; the answer is the same for the forward and the
/// backward pass.
bool tiled_attention_serves(at::ScalarType dtype, const AttentionShape& shape);

/// lse: one tensor [heads, T] fp32.
AttentionOutput tiled_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const BatchContext& batch,
                                        const AttentionShape& shape);
AttentionGrads tiled_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const AttentionOutput& saved, const BatchContext& batch,
                                        const AttentionShape& shape);

}  // namespace sftrun::kernels
