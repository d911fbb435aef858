#pragma once

#include "sftrun/kernels/ops.h"

/// Causal attention on CPU in tiles of 64 x 64, with products of blocks (matmul/block_product.h) or
/// AMX. Tiles that are fully masked are skipped; LibTorch's own kernel computes them. Operands are
/// packed and zero-padded to whole tiles, so that products have only a few shapes, whatever the
/// document lengths (LibTorch's brgemm compiles code for each new shape at run time).
namespace sftrun::kernels {

/// Whether processor, dtype and head_dim are supported; the same for forward and backward pass.
bool tiled_attention_serves(at::ScalarType dtype, const AttentionShape& shape);

/// lse: one tensor [heads, T] fp32.
AttentionOutput tiled_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const BatchMetadata& batch,
                                        const AttentionShape& shape);
AttentionGrads tiled_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const AttentionOutput& saved, const BatchMetadata& batch,
                                        const AttentionShape& shape);

}  // namespace sftrun::kernels
