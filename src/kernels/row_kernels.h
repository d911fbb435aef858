#pragma once

#include <type_traits>

#include "sftrun/kernels/cpu_table.h"

namespace sftrun::kernels {

/// This processor's kernels for T: float, or uint16_t that holds bfloat16.
template <typename T>
const RowKernels<T>& row_kernels() {
  if constexpr (std::is_same_v<T, float>)
    return cpu_kernels().f32;
  else
    return cpu_kernels().bf16;
}

}  // namespace sftrun::kernels
