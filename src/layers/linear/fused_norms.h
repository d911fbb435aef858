#pragma once

#include "sftrun/kernels/ops.h"
#include "sftrun/layers/linear.h"

/// RMSNorms that may be absent, forward and backward pass.
namespace sftrun::layers {

struct Normed {
  at::Tensor y, rstd;
};

/// x itself without a norm.
/// @param copy, spare as in `rms_norm_forward`; ignored without a norm
Normed normed(const at::Tensor& x, const Norm& norm, const at::Tensor& copy = {},
              int64_t spare = 0);

/// Factors of the norm; undefined without a norm.
kernels::NormFactors factors_of(const Norm& norm, const at::Tensor& rstd);

/// Recomputes the normed input for a group's parameter gradients; undefined if none trains.
at::Tensor normed_again(const at::Tensor& x, const Norm& norm, const LinearGroup& group);

/// Backward pass of norm(x) beside a residual path. Adds to the weight's gradient.
/// @param spare as in `rms_norm_backward`; ignored without a norm
/// @return residual_grad + gradient of x through the norm; undefined when !needs_dx
at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& x, const Norm& norm,
                         const at::Tensor& rstd, const at::Tensor& residual_grad, bool needs_dx,
                         int64_t spare = 0);

/// One row per head, or per token, whichever the norm applies to.
at::Tensor rows_of(const at::Tensor& x, const Norm& norm);

/// Norm of q, k or v, in the same shape; x itself without a norm.
Normed normed_heads(const at::Tensor& x, const Norm& norm);

}  // namespace sftrun::layers
