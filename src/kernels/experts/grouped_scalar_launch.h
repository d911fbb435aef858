#pragma once

#include <cstdint>

#include "cuda/types.h"

/// Grouped products of every shape and dtype, without tensor cores: for fp32, and for 16-bit rows that
/// are not whole groups of eight elements.
namespace sftrun::kernels::cuda {

struct GroupedShape {
  int64_t rows, inner, columns, experts;
};
/// y [rows, columns] = x_e w_e^T with x [rows, inner] and w [experts, columns, inner]
/// (`transposed`), or x_e w_e with w [experts, inner, columns]; the rows of expert e end at
/// ends[e].
void launch_grouped_scalar(Type type, const void* x, const void* w, const int32_t* ends, void* y,
                           const GroupedShape& shape, bool transposed, Stream stream);
/// out [experts, inner, columns] fp32 += g_e^T x_e with g [rows, inner] and x [rows, columns].
void launch_grouped_scalar_tn(Type type, const void* g, const void* x, const int32_t* ends,
                              float* out, const GroupedShape& shape, Stream stream);

}  // namespace sftrun::kernels::cuda
