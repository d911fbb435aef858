#pragma once

#include <string>

#include "sftrun/kernels/ops.h"

/// Causal attention by cuDNN as LibTorch 2.11 calls it, for batches whose documents all have the
/// same length, viewed as [documents, heads, length, head_dim]. LibTorch's variant for different
/// lengths is not used: its backward pass writes past a buffer, and every call builds a new plan
/// (docs/decisions/0019-cudnn-attention.md).
namespace sftrun::kernels {

/// Number and length of documents if all have the same length; else count 0.
struct EqualDocuments {
  int64_t count = 0, length = 0;
};
/// @param cu_seqlens [documents + 1], on the host
/// @return count 0 if lengths differ or a document is empty
EqualDocuments equal_documents(const std::vector<int32_t>& cu_seqlens);

struct CudnnCard {
  int compute_capability = 0;  ///< such as 90 for an H100
  int64_t cudnn_version = 0;   ///< 91900 for 9.19.0
};
CudnnCard cudnn_card(at::Device device);

/// Reason for the log why cuDNN attention cannot be used; empty if it can. A pure function.
std::string why_not_cudnn(const AttentionShape& shape, at::ScalarType dtype,
                          const EqualDocuments& documents, const CudnnCard& card);

/// q [T, heads * head_dim], k and v [T, kv_heads * head_dim], fp16 or bf16; the row stride may
/// exceed the row length.
/// @throws c10::Error if cuDNN has no plan. LibTorch then caches an empty plan for the shape, so it
/// must not be called again with this shape.
AttentionOutput cudnn_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const BatchMetadata& batch,
                                        const AttentionShape& shape);
/// dq is not deterministic, as with FlashAttention.
AttentionGrads cudnn_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const AttentionOutput& saved, const BatchMetadata& batch,
                                        const AttentionShape& shape);

}  // namespace sftrun::kernels
