#pragma once

#include "amx_tiles.h"
#include "product_parts.h"

/// `matmul_sum` on AMX tile registers.   @pre tile_table() is not null
namespace sftrun::kernels {

template <typename T, typename U>
void amx_matmul_sum(const std::vector<Operand<T>>& operands, const ProductOutput<U>& output);

}  // namespace sftrun::kernels
