#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <type_traits>

#include "sftrun/core/error.h"
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

/// Minimum number of rows per thread: below this, starting threads costs more than it saves.
inline int64_t grain(int64_t channels) {
  return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, channels));
}

template <typename T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

/// Calls body(kernels, typed null pointer) for the tensor's dtype.
template <typename Body>
void for_dtype(const at::Tensor& tensor, Body&& body) {
  if (tensor.scalar_type() == at::kFloat) {
    body(cpu_kernels().f32, static_cast<float*>(nullptr));
  } else {
    SFTRUN_CHECK(tensor.scalar_type() == at::kBFloat16);
    body(cpu_kernels().bf16, static_cast<uint16_t*>(nullptr));
  }
}

}  // namespace sftrun::kernels
