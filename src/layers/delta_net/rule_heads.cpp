#include "delta_net/rule_heads.h"

#include <ATen/ATen.h>

#include "sftrun/core/error.h"

namespace sftrun::layers {

RuleHeads::RuleHeads(const DeltaNet& net, const BatchContext& batch)
    : net_(net),
      share_(batch.share.get()),
      shape_{net.num_key_heads, net.num_value_heads, net.key_dim, net.value_dim},
      conv_(net.conv.weight),
      a_log_(net.a_log.weight),
      dt_bias_(net.dt_bias.weight) {
  if (share_ == nullptr) return;
  const int64_t size = share_->size(), rank = share_->ranks().rank();
  SFTRUN_CHECK(net.num_value_heads % size == 0);
  shape_.num_value_heads = net.num_value_heads / size;
  key_heads_ = KeyCopies(*share_, net.num_key_heads, net.key_dim);
  shape_.num_key_heads = key_heads_.num_own_heads();
  const auto options = at::TensorOptions().dtype(at::kLong).device(conv_.device());
  const int64_t own_keys = shape_.num_key_heads * net.key_dim,
                first_key = rank / key_heads_.copies() * own_keys,
                own_values = shape_.num_value_heads * net.value_dim,
                first_value = 2 * keys() + rank * own_values;
  channels_ = at::cat({at::arange(first_key, first_key + own_keys, options),
                       at::arange(keys() + first_key, keys() + first_key + own_keys, options),
                       at::arange(first_value, first_value + own_values, options)});
  conv_ = conv_.index_select(0, channels_);
  a_log_ = a_log_.narrow(0, first_value_head(), shape_.num_value_heads);
  dt_bias_ = dt_bias_.narrow(0, first_value_head(), shape_.num_value_heads);
}

int64_t RuleHeads::first_value_head() const {
  return share_->ranks().rank() * shape_.num_value_heads;
}

at::Tensor RuleHeads::columns(const at::Tensor& rows) const {
  return share_ == nullptr ? rows : share_->columns_of(rows);
}

at::Tensor RuleHeads::rows(const at::Tensor& columns) const {
  return share_ == nullptr ? columns : share_->rows_of(columns);
}

at::Tensor RuleHeads::columns_of_channels(const at::Tensor& rows) const {
  if (share_ == nullptr) return rows;
  const auto of_keys = [&](int64_t first) {
    return key_heads_.columns_of(rows.narrow(1, first, keys()));
  };
  return at::cat(
      {of_keys(0), of_keys(keys()), share_->columns_of(rows.narrow(1, 2 * keys(), values()))}, 1);
}

at::Tensor RuleHeads::rows_of_channels(const at::Tensor& gradient) const {
  if (share_ == nullptr) return gradient;
  const int64_t own_keys = shape_.num_key_heads * net_.key_dim;
  const auto of_keys = [&](int64_t first) {
    return key_heads_.rows_of(gradient.narrow(1, first, own_keys));
  };
  return at::cat(
      {of_keys(0), of_keys(own_keys),
       share_->rows_of(gradient.narrow(1, 2 * own_keys, shape_.num_value_heads * net_.value_dim))},
      1);
}

void RuleHeads::add_conv_gradient(const at::Tensor& gradient) const {
  at::Tensor grad = net_.conv.parameter->grad;
  if (share_ == nullptr)
    grad.add_(gradient);
  else
    grad.index_add_(0, channels_, gradient.to(grad.scalar_type()).view({-1, grad.size(-1)}));
}

void RuleHeads::add_gradient(const Weight& weight, const at::Tensor& gradient) const {
  const at::Tensor grad = weight.parameter->grad;
  (share_ == nullptr ? grad : grad.narrow(0, first_value_head(), shape_.num_value_heads))
      .add_(gradient);
}

}  // namespace sftrun::layers
