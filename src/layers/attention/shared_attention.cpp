#include "attention/shared_attention.h"

#include <ATen/ATen.h>

#include "sftrun/core/error.h"

namespace sftrun::layers {

SharedAttention::SharedAttention(const Attention& attention, const BatchContext& batch)
    : a_(attention), batch_(batch), shape_(attention.shape) {
  if (!batch.share) return;
  const int64_t size = batch.share->size();
  SFTRUN_CHECK(shape_.num_heads % size == 0);
  shape_.num_heads /= size;
  if (shape_.num_kv_heads % size == 0) {
    shape_.num_kv_heads /= size;
    return;
  }
  SFTRUN_CHECK(size % shape_.num_kv_heads == 0);
  key_copies_ = size / shape_.num_kv_heads;
  shape_.num_kv_heads = 1;
}

at::Tensor SharedAttention::own_sinks() const {
  const at::Tensor& sinks = a_.sinks.weight;
  if (!batch_.share || !sinks.defined()) return sinks;
  return sinks.narrow(0, batch_.share->ranks().rank() * shape_.num_heads, shape_.num_heads);
}

at::Tensor SharedAttention::columns_of_keys(const at::Tensor& keys) const {
  if (key_copies_ == 1) return batch_.share->columns_of(keys);
  const at::Tensor heads = keys.view({keys.size(0), -1, 1, shape_.head_dim});
  return batch_.share->columns_of(
      heads.expand({-1, -1, key_copies_, -1}).reshape({keys.size(0), -1}));
}

/// Of gradients: the sum over the copies of a head.
at::Tensor SharedAttention::rows_of_keys(const at::Tensor& keys) const {
  const at::Tensor rows = batch_.share->rows_of(keys);
  if (key_copies_ == 1) return rows;
  return rows.view({rows.size(0), -1, key_copies_, shape_.head_dim})
      .sum(2, /*keepdim=*/false, at::kFloat)
      .to(rows.scalar_type())
      .view({rows.size(0), -1});
}

SharedAttention::Output SharedAttention::forward(const at::Tensor& q, const at::Tensor& k,
                                                 const at::Tensor& v) const {
  Output output;
  if (!batch_.share) {
    output.kept = kernels::attention_forward(q, k, v, batch_, shape_, own_sinks());
    output.rows = output.kept.out;
    return output;
  }
  output.kept = kernels::attention_forward(batch_.share->columns_of(q), columns_of_keys(k),
                                           columns_of_keys(v), batch_, shape_, own_sinks());
  output.rows = batch_.share->rows_of(output.kept.out);
  return output;
}

kernels::AttentionGrads SharedAttention::backward(const at::Tensor& d_out, const at::Tensor& q,
                                                  const at::Tensor& k, const at::Tensor& v,
                                                  const kernels::AttentionOutput& kept) const {
  if (!batch_.share) return kernels::attention_backward(d_out, q, k, v, kept, batch_, shape_);
  const kernels::AttentionGrads d =
      kernels::attention_backward(batch_.share->columns_of(d_out), batch_.share->columns_of(q),
                                  columns_of_keys(k), columns_of_keys(v), kept, batch_, shape_);
  return {batch_.share->rows_of(d.dq), rows_of_keys(d.dk), rows_of_keys(d.dv)};
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
