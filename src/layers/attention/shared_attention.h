#pragma once

#include "key_copies.h"
#include "sftrun/layers/attention.h"

namespace sftrun::layers {

/// Attention's kernels for the rows of this rank. Where other ranks have the other rows of the
/// micro-batch (`BatchContext::share`), each of them computes all rows of its heads.
class SharedAttention {
 public:
  SharedAttention(const Attention& attention, const BatchContext& batch);

  struct Output {
    at::Tensor rows;  ///< [rows of this rank, heads * head_dim]
    kernels::AttentionOutput kept;
  };
  /// @param q, k, v rows of this rank, all heads
  Output forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  /// @param d_out gradient of `Output::rows`
  kernels::AttentionGrads backward(const at::Tensor& d_out, const at::Tensor& q,
                                   const at::Tensor& k, const at::Tensor& v,
                                   const kernels::AttentionOutput& kept) const;
  /// Adds the gradient of the sinks.
  void add_sinks_gradient(const at::Tensor& d_out, const kernels::AttentionOutput& kept) const;

 private:
  at::Tensor own_sinks() const;

  const Attention& a_;
  const BatchContext& batch_;
  kernels::AttentionShape shape_;  // of this rank's heads
  KeyCopies keys_;                 // with `BatchContext::share`
};

}  // namespace sftrun::layers
