#pragma once

#include <vector>

#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/linear.h"

/// Linear layers with the same input and their adapters, forward and backward pass.
namespace sftrun::layers {

/// x [T, in] -> [T, out] for each linear, including bias, adapter and `residual` (only for a group
/// of one).
std::vector<at::Tensor> linears_forward(const at::Tensor& x, const LinearGroup& group,
                                        const BatchContext& batch, LowRank* low,
                                        const at::Tensor& residual = {});

/// Adds to the parameters' gradients. @return gradient of x; undefined when !needs_dx
/// @param grads contiguous, [T, out] each   @param x read only if the group trains
at::Tensor linears_backward(const std::vector<at::Tensor>& grads, const at::Tensor& x,
                            const LowRank& low, const LinearGroup& group, const BatchContext& batch,
                            bool needs_dx);

}  // namespace sftrun::layers
