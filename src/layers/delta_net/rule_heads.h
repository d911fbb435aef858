#pragma once

#include "key_copies.h"
#include "sftrun/kernels/delta_rule.h"
#include "sftrun/layers/delta_net.h"

namespace sftrun::layers {

/// The heads of a delta net whose convolution and recurrence this rank computes, over all rows of the
/// micro-batch: all heads, or in context parallelism (`BatchContext::share`) a part of them. Names: rows
/// are [rows of this rank, all heads * n], columns [T, heads of this rank * n].
class RuleHeads {
 public:
  RuleHeads(const DeltaNet& net, const BatchContext& batch);

  const kernels::RuleShape& shape() const { return shape_; }
  const at::Tensor& conv() const { return conv_; }        ///< [channels of this rank, kernel]
  const at::Tensor& a_log() const { return a_log_; }      ///< [value heads of this rank]
  const at::Tensor& dt_bias() const { return dt_bias_; }  ///< the same

  /// Of what has a number, or some, for each value head.
  at::Tensor columns(const at::Tensor& rows) const;
  at::Tensor rows(const at::Tensor& columns) const;
  /// Of the channels of `in_qkv`. Ranks that share a head of keys have copies of it; rows of gradients
  /// are the sums over the copies.
  at::Tensor columns_of_channels(const at::Tensor& rows) const;
  at::Tensor rows_of_channels(const at::Tensor& gradient) const;

  void add_conv_gradient(const at::Tensor& gradient) const;
  /// @param weight a_log or dt_bias   @param gradient [value heads of this rank]
  void add_gradient(const Weight& weight, const at::Tensor& gradient) const;

 private:
  int64_t keys() const { return net_.num_key_heads * net_.key_dim; }
  int64_t values() const { return net_.num_value_heads * net_.value_dim; }
  int64_t first_value_head() const;

  const DeltaNet& net_;
  const SequenceShare* share_;
  kernels::RuleShape shape_;
  KeyCopies key_heads_;  // with `share_`
  at::Tensor channels_;  // [channels of this rank] int64: which of `in_qkv`; undefined: all
  at::Tensor conv_, a_log_, dt_bias_;
};

}  // namespace sftrun::layers
