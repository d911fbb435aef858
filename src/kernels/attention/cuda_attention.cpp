#include "cuda_attention.h"

#include <ATen/ATen.h>

#include <limits>

#include "attention/attention_launch.h"
#include "cuda/launch.h"
#include "operands.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_attention_forward)> launch_attention_forward(
    "launch_attention_forward");
const CudaEntry<decltype(cuda::launch_attention_backward)> launch_attention_backward(
    "launch_attention_backward");

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
  if (!sees_both_ways(batch, s)) return;
  TORCH_CHECK(s.head_dim <= cuda::kMaxDepthBothWays, "spans seen both ways by heads of ",
              s.head_dim, " channels");
  require_operand(batch.key_ends_device, q, at::kInt);
  require_numel(batch.key_ends_device, q.size(0));
}

cuda::AttentionProblem attention_problem(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const BatchMetadata& batch,
                                         const AttentionShape& shape) {
  const at::Tensor& cu_seqlens = batch.cu_seqlens_device;
  return {.q = q.const_data_ptr(),
          .k = k.const_data_ptr(),
          .v = v.const_data_ptr(),
          .cu_seqlens = cu_seqlens.const_data_ptr<int32_t>(),
          .tokens = q.size(0),
          .documents = cu_seqlens.numel() - 1,
          .heads = shape.num_heads,
          .kv_heads = shape.num_kv_heads,
          .depth = shape.head_dim,
          .q_stride = q.stride(0),
          .k_stride = k.stride(0),
          .v_stride = v.stride(0),
          .window = shape.window,
          .scale = static_cast<float>(shape.scale),
          .softcap = static_cast<float>(shape.softcap),
          .key_ends = sees_both_ways(batch, shape) ? batch.key_ends_device.const_data_ptr<int32_t>()
                                                   : nullptr};
}

std::pair<at::Tensor, at::Tensor> launch_forward(const at::Tensor& q, const at::Tensor& k,
                                                 const at::Tensor& v, const BatchMetadata& batch,
                                                 const AttentionShape& shape) {
  at::Tensor out = at::empty(q.sizes(), q.options()),
             lse = at::empty({shape.num_heads, q.size(0)}, q.options().dtype(at::kFloat));
  const Launch launch(q);
  launch_attention_forward(cuda_type_of(q), attention_problem(q, k, v, batch, shape),
                           out.data_ptr(), lse.data_ptr<float>(), launch.stream());
  launch.check();
  return {out, lse};
}

AttentionGrads launch_backward(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                               const BatchMetadata& batch, const AttentionShape& shape) {
  AttentionGrads grads{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                       at::empty(v.sizes(), v.options())};
  at::Tensor delta = at::empty(lse.sizes(), lse.options()),
             first_key = at::empty({q.size(0)}, batch.cu_seqlens_device.options());
  const Launch launch(q);
  launch_attention_backward(cuda_type_of(q), attention_problem(q, k, v, batch, shape),
                            {.d_out = d_out.const_data_ptr(),
                             .out = out.const_data_ptr(),
                             .lse = lse.const_data_ptr<float>(),
                             .delta = delta.data_ptr<float>(),
                             .first_key = first_key.data_ptr<int32_t>(),
                             .dq = grads.dq.data_ptr(),
                             .dk = grads.dk.data_ptr(),
                             .dv = grads.dv.data_ptr()},
                            launch.stream());
  launch.check();
  return grads;
}

}  // namespace

bool cuda_attention_serves(const AttentionShape& shape, bool both_ways) {
  return shape.head_dim <= (both_ways ? cuda::kMaxDepthBothWays : cuda::kMaxAttentionDepth);
}

AttentionOutput cuda_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                       const at::Tensor& v, const BatchMetadata& batch,
                                       const AttentionShape& shape) {
  require_attention(q, k, v, batch, shape);
  auto [out, lse] = launch_forward(q, k, v, batch, shape);
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
  return launch_backward(d, q, k, v, out, lse, batch, shape);
}

}  // namespace sftrun::kernels
