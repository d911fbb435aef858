#include "attention/shared_attention.h"

#include <ATen/ATen.h>

#include "sftrun/core/error.h"

namespace sftrun::layers {

SharedAttention::SharedAttention(const Attention& attention, const BatchContext& batch)
    : a_(attention), batch_(batch), shape_(attention.shape) {
  if (!batch.share) return;
  SFTRUN_CHECK(shape_.num_heads % batch.share->size() == 0);
  keys_ = KeyCopies(*batch.share, shape_.num_kv_heads, shape_.head_dim);
  shape_.num_heads /= batch.share->size();
  shape_.num_kv_heads = keys_.num_own_heads();
}

at::Tensor SharedAttention::own_sinks() const {
  const at::Tensor& sinks = a_.sinks.weight;
  if (!batch_.share || !sinks.defined()) return sinks;
  return sinks.narrow(0, batch_.share->ranks().rank() * shape_.num_heads, shape_.num_heads);
}

SharedAttention::Output SharedAttention::forward(const at::Tensor& q, const at::Tensor& k,
                                                 const at::Tensor& v) const {
  Output output;
  if (!batch_.share) {
    output.kept = kernels::attention_forward(q, k, v, batch_, shape_, own_sinks());
    output.rows = output.kept.out;
    return output;
  }
  output.kept = kernels::attention_forward(batch_.share->columns_of(q), keys_.columns_of(k),
                                           keys_.columns_of(v), batch_, shape_, own_sinks());
  output.rows = batch_.share->rows_of(output.kept.out);
  return output;
}

kernels::AttentionGrads SharedAttention::backward(const at::Tensor& d_out, const at::Tensor& q,
                                                  const at::Tensor& k, const at::Tensor& v,
                                                  const kernels::AttentionOutput& kept) const {
  if (!batch_.share) return kernels::attention_backward(d_out, q, k, v, kept, batch_, shape_);
  const kernels::AttentionGrads d =
      kernels::attention_backward(batch_.share->columns_of(d_out), batch_.share->columns_of(q),
                                  keys_.columns_of(k), keys_.columns_of(v), kept, batch_, shape_);
  return {batch_.share->rows_of(d.dq), keys_.rows_of(d.dk), keys_.rows_of(d.dv)};
}

void SharedAttention::add_sinks_gradient(const at::Tensor& d_out,
                                         const kernels::AttentionOutput& kept) const {
  at::Tensor grad = a_.sinks.parameter->grad;
  if (!batch_.share) {
    grad.add_(kernels::attention_sinks_grad(d_out, kept, own_sinks()));
    return;
  }
  grad.narrow(0, batch_.share->ranks().rank() * shape_.num_heads, shape_.num_heads)
      .add_(kernels::attention_sinks_grad(batch_.share->columns_of(d_out), kept, own_sinks()));
}

}  // namespace sftrun::layers
