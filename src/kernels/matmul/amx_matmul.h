#pragma once

#include "amx_tiles.h"
#include "product_parts.h"

/// Sums of products on tile registers; see amx_tiles.h.
namespace sftrun::kernels {

template <typename T>
void amx_matmul_sum(const TileTable& tiles, const std::vector<Operand<T>>& operands,
                    const ProductOutput<T>& output);

}  // namespace sftrun::kernels
