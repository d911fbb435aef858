#pragma once

#include <string>

#include "sftrun/kernels/ops.h"

/// Causal attention by cuDNN's kernel, as LibTorch 2.11 calls it: of a batch whose documents all
/// have one length, seen as [documents, heads, length, head_dim]. LibTorch's entry for documents of
/// different lengths is not used: its backward pass writes past a buffer, and every call builds a
/// plan anew (docs/decisions/0019-cudnn-attention.md).
namespace sftrun::kernels {

/// Documents of one length. None: count 0.
struct EqualDocuments {
  int64_t count = 0, length = 0;
};
/// @param cu_seqlens [documents + 1], on the host
/// @return count 0 where lengths differ, or a document is empty
EqualDocuments equal_documents(const std::vector<int32_t>& cu_seqlens);

struct CudnnCard {
  int compute_capability = 0;  ///< 90 of an H100
  int64_t cudnn_version = 0;   ///< 91900 for 9.19.0
};
CudnnCard cudnn_card(at::Device device);

/// Why cuDNN's kernel cannot be used, in words for a log; empty: it can. A pure function.
std::string why_not_cudnn(const AttentionShape& shape, at::ScalarType dtype,
                          const EqualDocuments& documents, const CudnnCard& card);

/// q [T, heads * head_dim], k and v [T, kv_heads * head_dim], in fp16 or bf16; rows may lie further
/// apart than they are long.
/// @throws c10::Error where cuDNN has no plan. LibTorch then keeps an empty plan for the shape,
/// which a second call would use: never call it again with such a shape.
AttentionOutput cudnn_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const BatchContext& batch,
                                        const AttentionShape& shape);
/// Sums of dq are not deterministic, as FlashAttention's.
AttentionGrads cudnn_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const AttentionOutput& saved, const BatchContext& batch,
                                        const AttentionShape& shape);

}  // namespace sftrun::kernels
