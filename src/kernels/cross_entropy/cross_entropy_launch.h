#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace sftrun::kernels::cuda {

/// Gradient of scale * factor * sum of (row_factors[row] * losses[row]).
struct LossGradient {
  bool is_wanted = false;
  float scale = 1;
  const float* factor = nullptr;       ///< on the device; null: 1
  const float* row_factors = nullptr;  ///< [rows], on the device; null: 1
};
/// Overwrites logits with the gradient if it is wanted. Rows with a negative label have loss and
/// gradient 0.
void launch_cross_entropy(Type type, void* logits, const int32_t* labels, float* losses,
                          int64_t rows, int64_t vocab, float softcap, const LossGradient& gradient,
                          Stream stream);

}  // namespace sftrun::kernels::cuda
