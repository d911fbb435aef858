#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "../operands.h"
#include "sftrun/kernels/quant.h"

/// For `FormatOps` of formats with two codes per byte and scales of blocks, nested or not.
namespace sftrun::kernels {

inline bool splits_at_block(const QuantizedMatrix& matrix, int64_t num_rows) {
  return num_rows * matrix.columns % matrix.block_size == 0;
}

inline QuantizedMatrix narrow_blocks(const QuantizedMatrix& matrix, int64_t first, int64_t count) {
  QuantizedMatrix some = matrix;
  some.rows = count;
  const int64_t block = first * matrix.columns / matrix.block_size;
  some.first_block = matrix.first_block + block;
  some.packed = matrix.packed.narrow(0, first * matrix.columns / 2, count * matrix.columns / 2);
  for (at::Tensor* part : {&some.absmax, &some.codes})
    if (part->defined()) *part = part->narrow(0, block, some.num_blocks());
  return some;
}

/// Block scales [blocks]; nested ones are dequantised with the index in the original matrix.
inline at::Tensor unpacked_scales(const QuantizedMatrix& matrix, const at::Tensor& blocks) {
  if (!matrix.is_nested()) return matrix.absmax.index_select(0, blocks);
  const at::Tensor map = matrix.codes.is_cpu() ? nested_map() : matrix.nested_values,
                   codes = matrix.codes.index_select(0, blocks).to(at::kInt),
                   shared = at::floor_divide(blocks + matrix.first_block, matrix.nested_block);
  return map.index_select(0, codes)
      .mul_(matrix.nested_absmax.index_select(0, shared))
      .add_(matrix.offset);
}

inline QuantizedMatrix select_rows_of_blocks(const QuantizedMatrix& matrix,
                                             const at::Tensor& rows) {
  QuantizedMatrix some = matrix;
  some.rows = rows.numel();
  some.packed = matrix.packed.view({matrix.rows, -1}).index_select(0, rows).flatten();
  const int64_t blocks = matrix.columns / matrix.block_size;  // per row
  const at::Tensor chosen = rows.to(at::kLong).unsqueeze(1) * blocks +
                            at::arange(blocks, rows.options().dtype(at::kLong));
  some.absmax = unpacked_scales(matrix, chosen.flatten());
  for (at::Tensor* part : {&some.codes, &some.nested_absmax, &some.nested_values}) part->reset();
  return some;
}

inline int64_t values_of_block(const QuantizedMatrix& matrix) {
  return matrix.block_size;
}

/// Indices of the blocks of a part, in its order [blocks] int64.
inline at::Tensor blocks_of_part(const QuantizedMatrix& matrix, const TensorSlice& slice) {
  std::vector<at::Tensor> blocks;
  for (const IndexRange& range : slice.ranges) {
    if (slice.dim == 0) {
      blocks.push_back(at::arange(range.begin * matrix.columns / matrix.block_size,
                                  range.end() * matrix.columns / matrix.block_size));
      continue;
    }
    const int64_t per_row = matrix.columns / matrix.block_size;
    blocks.push_back(
        (at::arange(matrix.rows).unsqueeze(1) * per_row +
         at::arange(range.begin / matrix.block_size, range.end() / matrix.block_size)));
  }
  return slice.dim == 0 ? at::cat(blocks) : at::cat(blocks, 1).flatten();
}

/// Chooses the shared scales of some blocks. Neighbours of a part may have had different ones, so
/// fewer blocks share a scale than in the whole matrix.   @param blocks indices [n]
inline void choose_shared_scales(const QuantizedMatrix& matrix, const at::Tensor& blocks,
                                 QuantizedMatrix& some) {
  const at::Tensor shared =
      at::floor_divide(blocks + matrix.first_block, matrix.nested_block).contiguous();
  const auto* of_block = shared.const_data_ptr<int64_t>();
  const int64_t count = shared.numel();
  const auto share_one = [&](int64_t size) {
    for (int64_t i = 0; i < count; ++i)
      if (of_block[i] != of_block[i / size * size]) return false;
    return true;
  };
  some.nested_block = matrix.nested_block;
  while (!share_one(some.nested_block)) some.nested_block /= 2;
  some.nested_absmax =
      matrix.nested_absmax.index_select(0, shared.slice(0, 0, count, some.nested_block));
  some.first_block = 0;
}

/// A copy of some rows or columns that are whole blocks, with the same values. On CPU.
inline QuantizedMatrix part_of_blocks(const QuantizedMatrix& matrix, const TensorSlice& slice) {
  const at::Tensor blocks = blocks_of_part(matrix, slice);
  QuantizedMatrix some = matrix;
  (slice.dim == 0 ? some.rows : some.columns) = slice.size();
  const int64_t whole_bytes = matrix.numel() / matrix.block_size * matrix.block_size / 2;
  some.packed = matrix.packed.narrow(0, 0, whole_bytes)
                    .view({-1, matrix.block_size / 2})
                    .index_select(0, blocks)
                    .flatten();
  for (at::Tensor* part : {&some.absmax, &some.codes})
    if (part->defined()) *part = part->index_select(0, blocks);
  if (matrix.is_nested()) choose_shared_scales(matrix, blocks, some);
  return some;
}

inline void require_block_sizes(const QuantizedMatrix& matrix) {
  require_numel(matrix.packed, (matrix.numel() + 1) / 2);
  require_numel(matrix.is_nested() ? matrix.codes : matrix.absmax, matrix.num_blocks());
}

}  // namespace sftrun::kernels
