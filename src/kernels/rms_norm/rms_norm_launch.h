#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace sftrun::kernels::cuda {

/// y = rms_norm(x); `copy` receives x if it is not null. Contiguous, except that y has row stride
/// y_stride (in elements).
struct NormForward {
  const void *x, *weight;
  void *y, *copy;
  float* rstd;  ///< [rows]
  int64_t rows, hidden, y_stride;
  float eps, offset;
};
void launch_rms_norm_forward(Type type, const NormForward& norm, Stream stream);
/// dx, plus `residual` if it is not null. x is contiguous; the others have row strides.
struct NormBackward {
  const void *dy, *x, *weight;
  const float* rstd;  ///< [rows]
  const void* residual;
  void* dx;
  int64_t rows, hidden, dy_stride, residual_stride, dx_stride;
  float offset;
};
void launch_rms_norm_backward(Type type, const NormBackward& norm, Stream stream);

}  // namespace sftrun::kernels::cuda
