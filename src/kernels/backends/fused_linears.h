#pragma once

#include <vector>

#include "sftrun/kernels/layer.h"
#include "sftrun/kernels/ops.h"

/// Linears that share their input, with their adapters, as one operation and its backward pass.
namespace sftrun::kernels {

/// x [T, in] -> one [T, out] each, with biases, adapters and (of a group of one) `residual` added.
std::vector<at::Tensor> linears_forward(const at::Tensor& x, const LinearGroup& group,
                                        const BatchContext& batch, LowRank* low,
                                        const at::Tensor& residual = {});

/// Adds the parameters' gradients; returns that of x, undefined when !needs_dx.
/// @param grads contiguous [T, out] each   @param x read only when the group trains
at::Tensor linears_backward(const std::vector<at::Tensor>& grads, const at::Tensor& x,
                            const LowRank& low, const LinearGroup& group, const BatchContext& batch,
                            bool needs_dx);

}  // namespace sftrun::kernels
