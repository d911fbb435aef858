#pragma once

#include <ATen/core/Tensor.h>

#include "sftrun/kernels/ops.h"

namespace sftrun::test {

/// x [T, K], w [N, K] -> x w^T [T, N]
inline at::Tensor matmul_nt(const at::Tensor& x, const kernels::Matrix& w) {
  return kernels::matmul_sum({{x, w, /*transposed=*/true}});
}

}  // namespace sftrun::test
