#pragma once

#include <cstdint>

#include "cuda/types.h"

namespace sftrun::kernels::cuda {

/// to[r * to_stride + c] = scale * from[r * columns + c]
struct MatrixPlacement {
  const void* from;
  void* to;
  int64_t rows, columns, to_stride;
  float scale;
};
/// @param placements [count] on the device; all matrices have the same dtype
void launch_copy_matrices(Type type, const MatrixPlacement* placements, int64_t count,
                          Stream stream);

}  // namespace sftrun::kernels::cuda
