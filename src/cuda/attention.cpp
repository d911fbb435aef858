#include "entries.h"
#include "launch_context.h"

/// Attention by our own kernels.
namespace sftrun::kernels::plugin {

namespace {

cuda::AttentionProblem attention_problem(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& cu_seqlens,
                                         const AttentionShape& shape) {
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
          .softcap = static_cast<float>(shape.softcap)};
}

}  // namespace

std::pair<at::Tensor, at::Tensor> attention_forward(const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v,
                                                    const at::Tensor& cu_seqlens,
                                                    const AttentionShape& shape) {
  at::Tensor out = at::empty(q.sizes(), q.options()),
             lse = at::empty({shape.num_heads, q.size(0)}, q.options().dtype(at::kFloat));
  const Launch launch(q);
  cuda::launch_attention_forward(type_of(q), attention_problem(q, k, v, cu_seqlens, shape),
                                 out.data_ptr(), lse.data_ptr<float>(), launch.stream());
  launch.check();
  return {out, lse};
}

AttentionGrads attention_backward(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                                  const at::Tensor& cu_seqlens, const AttentionShape& shape) {
  AttentionGrads grads{at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()),
                       at::empty(v.sizes(), v.options())};
  at::Tensor delta = at::empty(lse.sizes(), lse.options()),
             first_key = at::empty({q.size(0)}, cu_seqlens.options());
  const Launch launch(q);
  cuda::launch_attention_backward(type_of(q), attention_problem(q, k, v, cu_seqlens, shape),
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

}  // namespace sftrun::kernels::plugin
