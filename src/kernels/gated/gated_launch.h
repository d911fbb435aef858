#pragma once

#include <cstdint>

#include "cuda/algorithms.h"
#include "cuda/types.h"
#include "sftrun/kernels/cpu_table.h"

namespace sftrun::kernels::cuda {

/// Shape of gate, up (row stride `stride`) and h (row stride `h_stride`).
struct GatedShape {
  int64_t rows, columns, stride;
  int64_t h_stride;  ///< forward: of h; backward: `columns`, as dh is contiguous

  /// Whether all rows are contiguous.
  SFTRUN_HOST_DEVICE bool is_dense() const { return stride == columns && h_stride == columns; }
};
/// Content of dh after the backward pass: unchanged, or h.
enum class GatedLeaves { kGradient, kActivation };
void launch_gated_forward(Type type, Gating gating, const void* gate, const void* up, void* h,
                          const GatedShape& shape, Stream stream);
/// Overwrites gate and up with their gradients; dh with h if requested.
void launch_gated_backward(Type type, Gating gating, void* dh, void* gate, void* up,
                           const GatedShape& shape, GatedLeaves leaves, Stream stream);

}  // namespace sftrun::kernels::cuda
