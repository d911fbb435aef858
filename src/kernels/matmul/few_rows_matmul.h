#pragma once

#include <vector>

#include "product_parts.h"

namespace sftrun::kernels {

/// Sum of products with few rows, whose right operands are not packed as a whole: each thread
/// multiplies its columns of the output by small parts of them.   @pre block products are ours
template <typename T, typename U>
void few_rows_matmul_sum(const std::vector<Operand<T>>& operands, const ProductOutput<U>& output);

}  // namespace sftrun::kernels
