#pragma once

#include <vector>

#include "sftrun/kernels/ops.h"
#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/layer.h"

namespace sftrun::layers {

/// State of a block's last linear and the norm after it, for the backward pass.
struct Joined {
  at::Tensor y, rstd;  ///< output of the linear, if a norm follows
  LowRank low;
  at::Tensor joint_low;  ///< of a joint linear; replaces `low`
};

/// What the blocks of a layer share: the linear layer that ends a block, with its norm and the
/// residual. Forward passes save what backward needs if `keep` is not null. Backward passes add
/// to the parameters' gradients.
class FusedBlock {
 public:
  FusedBlock(const Layer& layer, const BatchContext& batch) : l_(layer), batch_(batch) {}

 protected:
  /// Whether x [T, ...] is multiplied by a joint matrix. With few tokens a quantised one is not
  /// dequantised; `thin_product` multiplies by its codes instead.
  static bool joins(const JointLinears& joint, const at::Tensor& x);
  /// Unused columns needed after each row of the input of a joint linear.
  int64_t spare_of_input(const JointLinears& joint, const at::Tensor& x) const;
  /// Adds the adapters' gradients; returns the gradient of the linears' input.
  static at::Tensor joint_backward(const at::Tensor& dy, const at::Tensor& x,
                                   const kernels::NormFactors& norm, const at::Tensor& low,
                                   const JointLinears& joint, bool needs_dx);
  /// Memory for a copy of x, which the norm kernel makes, if a joint linear's result will be added
  /// to x in place; else undefined.
  at::Tensor copy_for_sum(const at::Tensor& x, const Norm& in, const JointLinears& joint,
                          const Norm& out) const;
  /// Each member's columns of a joint result.
  static std::vector<at::Tensor> parts_of_joint(const at::Tensor& all, const JointLinears& joint);
  /// Splits columns into contiguous tensors.
  static std::vector<at::Tensor> parts(const at::Tensor& x, const std::vector<int64_t>& sizes);
  /// x + residual_scale * norm(linear(h)), in one pass if there is neither norm nor scale.
  /// @param joint joint linear of `linear` alone, used where possible
  /// @param copy result of `copy_for_sum`, overwritten with the sum; or undefined
  at::Tensor join(const at::Tensor& x, const at::Tensor& h, const Linear& linear,
                  const JointLinears& joint, const Norm& norm, Joined* keep,
                  const at::Tensor& copy = {});
  /// x + residual_scale * norm(y); may overwrite y
  at::Tensor normed_sum(const at::Tensor& x, const at::Tensor& y, const Norm& norm, Joined* keep);
  /// Gradient of what `join` adds to x, given that of the sum.
  at::Tensor summand_grad(const at::Tensor& grad, const Norm& norm, Joined& kept, bool needs_dy,
                          int64_t spare = 0);
  /// Returns the gradient of h; that of x is `grad` itself.
  at::Tensor join_backward(const at::Tensor& grad, const at::Tensor& h, const Linear& linear,
                           const JointLinears& joint, const Norm& norm, Joined& kept,
                           bool needs_dh);
  bool adapters() const { return batch_.adapters; }
  const Layer& l_;
  const BatchContext& batch_;
};

}  // namespace sftrun::layers
