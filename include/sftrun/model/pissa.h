#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// PiSSA (arXiv:2404.02948): adapters start as the principal part of the weights, which is
/// subtracted from the base.
namespace sftrun::model {

struct PrincipalPart {
  at::Tensor a, b;  ///< [r, in] and [out, r] fp32, contiguous
};

/// The r largest singular values S and singular vectors of W = U S V^T, as in peft's pissa_init:
///     A = sqrt(S / scale) V^T,  B = U sqrt(S / scale),  so scale * B A approximates W best
/// among matrices of rank r. Computed in fp64 from the eigenvectors of W W^T or W^T W, whichever is
/// smaller. The sign of each vector pair is chosen so that the largest component of V is positive,
/// so all processes get the same result.
/// @param weight [out, in] fp32 on CPU   @param r at most min(out, in)
PrincipalPart principal_part(const at::Tensor& weight, int64_t r, double scale);

}  // namespace sftrun::model
