#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "../operands.h"
#include "../row_kernels.h"
#include "cuda_formats.h"
#include "format_ops.h"
#include "sftrun/kernels/cpu_table.h"
#include "thin_rows.h"
#include "whole_rows.h"

/// e4m3 with one scale per block of kFp8Block rows and columns, as files have it. A row finds its
/// scales by `block_rows`; so rows are separate, and only columns are cut between blocks.
/// Compiled with -ffp-contract=off: a value is code * scale, rounded once.
namespace sftrun::kernels {
namespace {

struct BlockedRow {
  const uint8_t* codes;
  const float* scales;  ///< [blocks_of_row()]
};

BlockedRow row_in_blocks(const QuantizedMatrix& matrix, int64_t row) {
  const int64_t of_blocks = matrix.block_rows.const_data_ptr<int32_t>()[row];
  return {matrix.packed.const_data_ptr<uint8_t>() + row * matrix.columns,
          matrix.absmax.const_data_ptr<float>() + of_blocks * matrix.blocks_of_row()};
}

template <typename T>
void unpack_fp8_blocks(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                       int64_t columns, T* out, int64_t stride) {
  const int64_t size = matrix.block_size, end = column + columns;
  for (int64_t i = row; i < row + rows; ++i, out += stride) {
    const BlockedRow from = row_in_blocks(matrix, i);
    for (int64_t first = column; first < end;) {
      const int64_t block = first / size, stop = std::min(end, (block + 1) * size);
      row_kernels<T>().dequantize_8bit(EightBits::kE4m3, from.codes + first, stop - first,
                                       from.scales[block], out + (first - column));
      first = stop;
    }
  }
}

int64_t bytes_of_e4m3_row(const QuantizedMatrix& matrix) {
  return matrix.columns;
}

/// All scales stay: there is one for 16384 values.
QuantizedMatrix narrow_blocked_rows(const QuantizedMatrix& matrix, int64_t first, int64_t count) {
  QuantizedMatrix some = matrix;
  some.rows = count;
  some.packed = matrix.packed.narrow(0, first * matrix.columns, count * matrix.columns);
  some.block_rows = matrix.block_rows.narrow(0, first, count);
  return some;
}

QuantizedMatrix select_blocked_rows(const QuantizedMatrix& matrix, const at::Tensor& rows) {
  QuantizedMatrix some = matrix;
  some.rows = rows.numel();
  some.packed = matrix.packed.view({matrix.rows, -1}).index_select(0, rows).flatten();
  some.block_rows = matrix.block_rows.index_select(0, rows);
  return some;
}

int64_t columns_that_stay_together(const QuantizedMatrix& matrix) {
  return std::gcd(matrix.block_size, kFp8LeastBlock);
}

/// The largest size of blocks at whose multiples all ranges begin and end.
int64_t block_size_of_part(const QuantizedMatrix& matrix, const TensorSlice& slice) {
  int64_t size = matrix.block_size;
  for (const IndexRange& range : slice.ranges)
    size = std::gcd(size, std::gcd(range.begin, range.count));
  return size;
}

/// Rows keep their row of blocks. Columns that begin or end within a block make the blocks of the part
/// smaller, with the same scales.
QuantizedMatrix part_of_blocked_rows(const QuantizedMatrix& matrix, const TensorSlice& slice) {
  QuantizedMatrix some = matrix;
  const bool is_of_rows = slice.dim == 0;
  (is_of_rows ? some.rows : some.columns) = slice.size();
  const at::Tensor codes = matrix.packed.view({matrix.rows, -1});
  std::vector<at::Tensor> packed, block_rows;
  std::vector<int64_t> blocks;  // of the whole matrix, that the part's blocks are in
  some.block_size = is_of_rows ? matrix.block_size : block_size_of_part(matrix, slice);
  for (const IndexRange& range : slice.ranges) {
    packed.push_back(codes.narrow(slice.dim, range.begin, range.count));
    if (is_of_rows) block_rows.push_back(matrix.block_rows.narrow(0, range.begin, range.count));
    for (int64_t i = 0; !is_of_rows && i < range.count; i += some.block_size)
      blocks.push_back((range.begin + i) / matrix.block_size);
  }
  some.packed = at::cat(packed, slice.dim).flatten();
  if (is_of_rows) {
    some.block_rows = at::cat(block_rows);
    return some;
  }
  const at::Tensor scales = matrix.absmax.view({-1, matrix.blocks_of_row()});
  some.absmax = scales.index_select(1, at::tensor(blocks, at::kLong)).flatten();
  return some;
}

void require_sizes_in_blocks(const QuantizedMatrix& matrix) {
  require_numel(matrix.packed, matrix.numel());
  require_operand(matrix.block_rows, matrix.packed, at::kInt);
  require_numel(matrix.block_rows, matrix.rows);
  TORCH_CHECK(matrix.absmax.numel() % matrix.blocks_of_row() == 0, matrix.absmax.numel(),
              " scales of rows of ", matrix.blocks_of_row(), " blocks");
}

bool has_rows_of_32(const QuantizedMatrix& w) {
  constexpr int64_t kGroup = 32;
  return w.columns % kGroup == 0 && w.block_size % kGroup == 0;
}

at::Tensor thin_product_of_blocks(const at::Tensor& x, const QuantizedMatrix& w) {
  const DotKernels& dots = cpu_kernels().dots;
  const at::Tensor in_fp32 = x.to(at::kFloat).contiguous();
  const ThinTokens tokens(in_fp32);
  return each_row(x, w.rows, [&] {
    return [&](int64_t row, float* out) {
      const BlockedRow from = row_in_blocks(w, row);
      dots.dot_8bit({EightBits::kE4m3, from.codes, from.scales, w.block_size}, w.columns, tokens.x,
                    tokens.count, out);
    };
  });
}

}  // namespace

constinit const FormatOps kFp8BlocksOps = {.format = QuantFormat::kFp8Blocks,
                                           .quantize = nullptr,
                                           .unpack_fp32 = unpack_fp8_blocks<float>,
                                           .unpack_bf16 = unpack_fp8_blocks<uint16_t>,
                                           .row_bytes = bytes_of_e4m3_row,
                                           .splits_at = splits_at_any_row,
                                           .narrow = narrow_blocked_rows,
                                           .select_rows = select_blocked_rows,
                                           .values_per_block = columns_that_stay_together,
                                           .part = part_of_blocked_rows,
                                           .require_sizes = require_sizes_in_blocks,
                                           .has_whole_groups = has_rows_of_32,
                                           .thin_product = thin_product_of_blocks,
                                           .cuda = &kFp8BlocksLaunches};

}  // namespace sftrun::kernels
