#pragma once

#include "cuda/algorithms.h"

namespace sftrun::kernels {

/// The gate after a step, for CPU and CUDA; the factor equals `train::clip_factor`.
/// @param norm gradient norm   @param max_norm 0: no clipping
SFTRUN_HOST_DEVICE UpdateGate decided(const UpdateGate& before, double norm, bool is_finite,
                                      double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return {static_cast<float>(max_norm > 0 && factor < 1 ? factor : 1.0),
          before.is_open != 0 && is_finite ? 1 : 0};
}

/// std::isfinite, which nvcc does not accept in device code.
SFTRUN_HOST_DEVICE bool is_finite_number(double x) {
  return x - x == 0;
}

}  // namespace sftrun::kernels
