#pragma once

#include <algorithm>

#include "sftrun/plan/blocks.h"
#include "sftrun/spec/arch_spec.h"

/// What several rows count.
namespace sftrun::plan {

inline constexpr int64_t kFp32 = 4;

/// fp32 gradient of a matrix on a GPU, before it is added to the gradients
/// (`kernels::add_matmul_tn_`).
inline int64_t matrix_gradient(const StepContext& step, int64_t rows, int64_t columns) {
  return step.trains_base ? kFp32 * rows * columns : 0;
}

/// The same on a CPU: a product in the compute dtype, which is then copied to fp32.
/// @param trains  whether the matrix does, in full
inline int64_t matrix_gradient_on_cpu(const StepContext& step, int64_t values, bool trains) {
  const int64_t element = step.shape.element_bytes;
  return trains && !step.shape.on_gpu ? values * (kFp32 + (element == kFp32 ? 0 : element)) : 0;
}

/// Backward pass of a block's first norm on a GPU: gradients of the normed input and of the input. A
/// norm that trains has the product in fp32 that its gradient is the sum of
/// (`kernels::rms_norm_weight_grad`).
inline int64_t norm_backward(const StepContext& step) {
  const int64_t hidden = step.arch.hidden_size, input = step.rows(hidden);
  return input + std::max(input, step.trains_base ? step.fp32_rows(hidden) : 0);
}

/// Rows of what is in no layer of the text model.
#define SFTRUN_OTHER_ROWS(X) \
  X(embedding) X(head) X(tower_patches) X(tower_layer) X(tower_mergers) X(projector)

#define SFTRUN_DECLARE_ROW(name) \
  namespace name {               \
  extern const BlockRow kRow;    \
  }
SFTRUN_BLOCKS(SFTRUN_DECLARE_ROW)
SFTRUN_OTHER_ROWS(SFTRUN_DECLARE_ROW)
#undef SFTRUN_DECLARE_ROW

}  // namespace sftrun::plan
