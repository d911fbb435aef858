#pragma once

#include "amx_tiles.h"
#include "product_parts.h"

/// Sums of products on tile registers, where `tile_table()` is there.
namespace sftrun::kernels {

template <typename T, typename U>
void amx_matmul_sum(const std::vector<Operand<T>>& operands, const ProductOutput<U>& output);

}  // namespace sftrun::kernels
