#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace sftrun::kernels::cuda {

/// Heads of queries, keys or values, [tokens, heads, head_dim].
struct HeadRows {
  const void* x;     ///< input before norm and RoPE; row stride x_stride in elements
  const void* grad;  ///< backward: gradient of the forward result
  void* y;  ///< forward: the result, may be x if there is no norm; backward: the gradient of x, may
            ///< be grad
  const void* weight;  ///< [head_dim] of the per-head norm; null: none
  float* rstd;         ///< [tokens * heads]: written forward, read backward
  int64_t heads, x_stride, y_stride;
  float eps, offset;  ///< of the norm
  bool rotates;       ///< false for values
};
/// Up to three kinds of heads in one launch; kinds with `heads` 0 are skipped.
inline constexpr int kMaxHeadKinds = 3;
struct HeadsProblem {
  HeadRows rows[kMaxHeadKinds];
  const float* cos;  ///< [tokens, rotary_dim / 2]; null: no RoPE
  const float* sin;
  int64_t tokens, head_dim, rotary_dim;
};
void launch_heads_forward(Type type, const HeadsProblem& problem, Stream stream);
void launch_heads_backward(Type type, const HeadsProblem& problem, Stream stream);

}  // namespace sftrun::kernels::cuda
