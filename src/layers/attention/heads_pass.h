#pragma once

#include <vector>

#include "sftrun/layers/attention.h"

namespace sftrun::layers {

/// Queries or keys [T, heads * head_dim] as their linear gives them.
struct RawHeads {
  at::Tensor x;
  const Norm* norm;
};

/// Queries and keys between their linears and attention in a pass of the fused backend: norms, then
/// RoPE. A norm applies to each head, or to all heads of a token together.
class HeadsPass {
 public:
  HeadsPass(const Attention& attention, const BatchContext& batch) : a_(attention), batch_(batch) {}

  /// Applies norm and RoPE; without a norm in place.
  std::vector<kernels::HeadsOutput> forward(const std::vector<RawHeads>& heads) const;
  /// Recomputes q and k as attention reads them; saved ones without a norm are already in that
  /// form.
  std::vector<at::Tensor> forward_again(const std::vector<RawHeads>& kept) const;
  /// Gradients of attention's inputs -> gradients of the linears' outputs.
  std::vector<at::Tensor> backward(const std::vector<RawHeads>& kept,
                                   const std::vector<at::Tensor>& grads,
                                   const std::vector<at::Tensor>& rstd) const;
  /// The same of q, k and v at once, written to `into`.   @param kept q and k
  /// @pre CUDA; norms are per head, and their weights are frozen
  void backward_into(const std::vector<RawHeads>& kept, const at::Tensor& value,
                     const kernels::AttentionGrads& grads, const std::vector<at::Tensor>& rstd,
                     const std::vector<at::Tensor>& into) const;

 private:
  const kernels::RopeAngles* angles() const;  // null: no RoPE
  bool is_of_heads(const Norm& norm) const;

  const Attention& a_;
  const BatchContext& batch_;
};

}  // namespace sftrun::layers
