#include "cuda_attention.h"

#include <ATen/ATen.h>

#include <limits>

#include "../operands.h"
#include "sftrun/kernels/cuda_registry.h"

namespace sftrun::kernels {
namespace {

/// Equals `cuda::kMostAttentionDepth`, whose header the engine does not include.
constexpr int64_t kMostDepth = 512;

void require_heads(const at::Tensor& x, const at::Tensor& q, int64_t heads, int64_t depth) {
  require_loose_rows(x);
  TORCH_CHECK(x.size(0) == q.size(0) && x.size(1) == heads * depth, "an operand of shape ",
              x.sizes(), " in place of ", heads, " heads of ", depth, " channels");
  TORCH_CHECK(x.device() == q.device() && x.scalar_type() == q.scalar_type(), "operands of ",
              x.scalar_type(), " on ", x.device(), " and ", q.scalar_type(), " on ", q.device());
}

void require_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const BatchMetadata& batch, const AttentionShape& s) {
  TORCH_CHECK(s.num_kv_heads > 0 && s.num_heads % s.num_kv_heads == 0, s.num_heads,
              " heads cannot share ", s.num_kv_heads, " of keys");
  require_heads(q, q, s.num_heads, s.head_dim);
  require_heads(k, q, s.num_kv_heads, s.head_dim);
  require_heads(v, q, s.num_kv_heads, s.head_dim);
  require_operand(batch.cu_seqlens_device, q, at::kInt);
  TORCH_CHECK(
      batch.cu_seqlens_device.numel() > 0 && q.size(0) <= std::numeric_limits<int32_t>::max(),
      "a batch of ", q.size(0), " tokens in ", batch.cu_seqlens_device.numel() - 1, " documents");
}

}  // namespace

bool cuda_attention_serves(const AttentionShape& shape) {
  return shape.head_dim <= kMostDepth;
}

AttentionOutput cuda_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const BatchMetadata& batch,
                                       const AttentionShape& shape) {
  require_attention(q, k, v, batch, shape);
  auto [out, lse] = cuda_kernels().attention_forward(q, k, v, batch.cu_seqlens_device, shape);
  return {out, {lse}};
}

AttentionGrads cuda_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const AttentionOutput& saved, const BatchMetadata& batch,
                                       const AttentionShape& shape) {
  require_attention(q, k, v, batch, shape);
  const at::Tensor d = d_out.contiguous(), &out = saved.out, &lse = saved.lse.at(0);
  require_heads(d, q, shape.num_heads, shape.head_dim);
  require_same(out, d);
  require_operand(lse, q, at::kFloat);
  require_numel(lse, shape.num_heads * q.size(0));
  return cuda_kernels().attention_backward(d, q, k, v, out, lse, batch.cu_seqlens_device, shape);
}

}  // namespace sftrun::kernels
