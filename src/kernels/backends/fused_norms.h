#pragma once

#include "sftrun/kernels/layer.h"
#include "sftrun/kernels/ops.h"

/// Norms that may not be there, forward and back.
namespace sftrun::kernels {

struct Normed {
  at::Tensor y, rstd;
};

/// x itself where there is no norm.
/// @param copy, spare as in `rms_norm_forward`, where there is one
Normed normed(const at::Tensor& x, const Norm& norm, const at::Tensor& copy = {},
              int64_t spare = 0);

/// What makes norm(x) of x; nothing where there is no norm.
NormFactors factors_of(const Norm& norm, const at::Tensor& rstd);

/// The normed input that a group's parameter gradients read: computed again, not kept.
at::Tensor normed_again(const at::Tensor& x, const Norm& norm, const LinearGroup& group);

/// Backward of norm(x) beside a residual path: returns residual_grad + the norm's gradient,
/// undefined when !needs_dx. Adds to the weight's gradient.
/// @param spare as in `rms_norm_backward`, where there is a norm
at::Tensor norm_backward(const at::Tensor& dy, const at::Tensor& x, const Norm& norm,
                         const at::Tensor& rstd, const at::Tensor& residual_grad, bool needs_dx,
                         int64_t spare = 0);

/// Heads as rows of their own, or all heads in one row, whichever the norm is for.
at::Tensor rows_of(const at::Tensor& x, const Norm& norm);

/// Of q, k or v, in its own shape; x itself where there is no norm.
Normed normed_heads(const at::Tensor& x, const Norm& norm);

}  // namespace sftrun::kernels
