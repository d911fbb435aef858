#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// PiSSA (arXiv:2404.02948): updates start from the principal part of the weights, which leaves the
/// base.
namespace sftrun::model {

struct PrincipalPart {
  at::Tensor a, b;  ///< [r, in] and [out, r] fp32, contiguous
};

/// The r largest singular values S of W = U S V^T and their vectors, as peft's pissa_init has them:
///     A = sqrt(S / scale) V^T,  B = U sqrt(S / scale),  so that scale * B A is W's best of rank r
/// Found in fp64 as eigenvectors of W W^T or W^T W, whichever is smaller; of each pair of vectors
/// that is determined but for its sign, the largest component of V's is positive, so that ranks
/// agree.
/// @param weight [out, in] fp32 on CPU   @param r at most min(out, in)
PrincipalPart principal_part(const at::Tensor& weight, int64_t r, double scale);

}  // namespace sftrun::model
