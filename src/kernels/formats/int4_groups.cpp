#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "../operands.h"
#include "../row_kernels.h"
#include "cuda_formats.h"
#include "format_ops.h"
#include "sftrun/kernels/cpu_table.h"
#include "thin_rows.h"
#include "whole_rows.h"

/// Integers of 4 bits with a scale and a zero point for each group of a row's columns: GPTQ
/// (arXiv:2210.17323), AWQ (arXiv:2306.00978) and compressed-tensors' pack-quantized. Rows are separate. A
/// group is `block_size` columns that follow one another, or those that `column_groups` names (GPTQ's
/// desc_act orders columns by their importance; here they stay in the order of the input).
/// Compiled with -ffp-contract=off: a value is (code - zero point) * scale, rounded once.
namespace sftrun::kernels {
namespace {

constexpr int kInt4Codes = 16;
using CodeTable = std::array<float, kInt4Codes>;

/// Of each zero point the values of all codes.
constexpr std::array<CodeTable, kInt4Codes> kTables = [] {
  std::array<CodeTable, kInt4Codes> tables{};
  for (int zero = 0; zero < kInt4Codes; ++zero)
    for (int code = 0; code < kInt4Codes; ++code)
      tables[static_cast<size_t>(zero)][static_cast<size_t>(code)] =
          static_cast<float>(code - zero);
  return tables;
}();

const CodeTable& table_of(uint8_t zero) {
  return kTables[zero % kInt4Codes];
}

int64_t groups_of_row(const QuantizedMatrix& matrix) {
  return matrix.rows == 0 ? 0 : matrix.absmax.numel() / matrix.rows;
}

bool has_one_group(const QuantizedMatrix& matrix) {
  return !matrix.column_groups.defined() && matrix.block_size >= matrix.columns;
}

int64_t bytes_of_int4_row(const QuantizedMatrix& matrix) {
  return (matrix.columns + 1) / 2;
}

struct GroupedRow {
  const uint8_t* packed;
  const float* scales;   ///< [groups]
  const uint8_t* zeros;  ///< [groups]
};

GroupedRow row_in_groups(const QuantizedMatrix& matrix, int64_t row) {
  const int64_t groups = groups_of_row(matrix);
  return {matrix.packed.const_data_ptr<uint8_t>() + row * bytes_of_int4_row(matrix),
          matrix.absmax.const_data_ptr<float>() + row * groups,
          matrix.zeros.const_data_ptr<uint8_t>() + row * groups};
}

/// Columns that follow one another in a group.
template <typename T>
void unpack_group(const GroupedRow& from, int64_t group, int64_t column, int64_t count, T* out) {
  // One block, so that the scale is that of any column.
  row_kernels<T>().dequantize_4bit(from.packed, column, count, column + count,
                                   table_of(from.zeros[group]).data(), from.scales + group, out);
}

void store_rounded(float value, float& out) {
  out = value;
}
void store_rounded(float value, uint16_t& out) {
  out = c10::BFloat16(value).x;
}

/// Columns that name their groups.   @param names of these columns
template <typename T>
void unpack_named(const GroupedRow& from, const int32_t* names, int64_t column, int64_t count,
                  T* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t byte = from.packed[(column + i) / 2];
    const int code = (column + i) % 2 == 0 ? byte >> 4 : byte & 15;
    const int32_t group = names[i];
    store_rounded(static_cast<float>(code - from.zeros[group]) * from.scales[group], out[i]);
  }
}

template <typename T>
void unpack_int4_groups(const QuantizedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                        int64_t columns, T* out, int64_t stride) {
  const bool is_named = matrix.column_groups.defined();
  const int64_t end = column + columns;
  for (int64_t i = row; i < row + rows; ++i, out += stride) {
    const GroupedRow from = row_in_groups(matrix, i);
    if (is_named) {
      const auto* names = matrix.column_groups.const_data_ptr<int32_t>();
      unpack_named(from, names + column, column, columns, out);
      continue;
    }
    for (int64_t first = column; first < end;) {
      const int64_t group = first / matrix.block_size,
                    stop = std::min(end, (group + 1) * matrix.block_size);
      unpack_group(from, group, first, stop - first, out + (first - column));
      first = stop;
    }
  }
}

/// [rows, what each has of these values]
at::Tensor by_rows(const at::Tensor& values, int64_t rows) {
  return values.view({rows, -1});
}

QuantizedMatrix narrow_grouped_rows(const QuantizedMatrix& matrix, int64_t first, int64_t count) {
  QuantizedMatrix some = matrix;
  some.rows = count;
  for (at::Tensor* part : {&some.packed, &some.absmax, &some.zeros}) {
    const int64_t size = part->numel() / std::max<int64_t>(1, matrix.rows);
    *part = part->narrow(0, first * size, count * size);
  }
  return some;
}

QuantizedMatrix select_grouped_rows(const QuantizedMatrix& matrix, const at::Tensor& rows) {
  QuantizedMatrix some = matrix;
  some.rows = rows.numel();
  for (at::Tensor* part : {&some.packed, &some.absmax, &some.zeros})
    *part = by_rows(*part, matrix.rows).index_select(0, rows).flatten();
  return some;
}

int64_t columns_together(const QuantizedMatrix& matrix) {
  return int4_columns_together(matrix.column_groups.defined() ? matrix.columns : matrix.block_size,
                               matrix.columns);
}

QuantizedMatrix part_of_grouped_rows(const QuantizedMatrix& matrix, const TensorSlice& slice) {
  QuantizedMatrix some = matrix;
  some.rows = slice.size();
  for (at::Tensor* part : {&some.packed, &some.absmax, &some.zeros}) {
    std::vector<at::Tensor> pieces;
    for (const IndexRange& range : slice.ranges)
      pieces.push_back(by_rows(*part, matrix.rows).narrow(0, range.begin, range.count));
    *part = at::cat(pieces).flatten();
  }
  return some;
}

/// The largest size of groups at whose multiples all ranges begin and end.
int64_t group_size_of_part(const QuantizedMatrix& matrix, const TensorSlice& slice) {
  int64_t size = matrix.block_size;
  for (const IndexRange& range : slice.ranges)
    size = std::gcd(size, std::gcd(range.begin, range.count));
  return size;
}

/// Columns that begin or end within a group make the groups of the part smaller, with the same scales and
/// zero points. Columns that name their groups keep them.
QuantizedMatrix part_of_columns(const QuantizedMatrix& matrix, const TensorSlice& slice) {
  QuantizedMatrix some = matrix;
  some.columns = slice.size();
  std::vector<at::Tensor> packed, names;
  std::vector<int64_t> groups;  // of the whole matrix, that the part's groups are in
  const bool is_named = matrix.column_groups.defined(), is_one = has_one_group(matrix);
  if (is_one)
    some.block_size = some.columns;
  else if (!is_named)
    some.block_size = group_size_of_part(matrix, slice);
  for (const IndexRange& range : slice.ranges) {
    packed.push_back(
        by_rows(matrix.packed, matrix.rows).narrow(1, range.begin / 2, range.count / 2));
    if (is_named) names.push_back(matrix.column_groups.narrow(0, range.begin, range.count));
    for (int64_t i = 0; !is_named && !is_one && i < range.count; i += some.block_size)
      groups.push_back((range.begin + i) / matrix.block_size);
  }
  some.packed = at::cat(packed, 1).flatten();
  if (is_named) {
    some.column_groups = at::cat(names);
    some.block_size = some.columns;
  } else if (!is_one) {
    const at::Tensor chosen = at::tensor(groups, at::kLong);
    for (at::Tensor* part : {&some.absmax, &some.zeros})
      *part = by_rows(*part, matrix.rows).index_select(1, chosen).flatten();
  }
  return some;
}

QuantizedMatrix part_of_groups(const QuantizedMatrix& matrix, const TensorSlice& slice) {
  return slice.dim == 0 ? part_of_grouped_rows(matrix, slice) : part_of_columns(matrix, slice);
}

void require_group_sizes(const QuantizedMatrix& matrix) {
  require_numel(matrix.packed, matrix.rows * bytes_of_int4_row(matrix));
  require_operand(matrix.zeros, matrix.packed, at::kByte);
  require_numel(matrix.zeros, matrix.absmax.numel());
  if (matrix.column_groups.defined()) {
    require_operand(matrix.column_groups, matrix.packed, at::kInt);
    require_numel(matrix.column_groups, matrix.columns);
    return;
  }
  TORCH_CHECK(groups_of_row(matrix) >= matrix.blocks_of_row() || matrix.rows == 0,
              matrix.absmax.numel(), " scales of ", matrix.rows, " rows of ",
              matrix.blocks_of_row(), " groups");
}

/// Columns in any order are multiplied after they are unpacked.
bool has_thin_groups(const QuantizedMatrix& w) {
  constexpr int64_t kAtOnce = 32;
  return w.columns % kAtOnce == 0 && !w.column_groups.defined() &&
         (has_one_group(w) || w.block_size % kAtOnce == 0);
}

at::Tensor thin_product_of_groups(const at::Tensor& x, const QuantizedMatrix& w) {
  const DotKernels& dots = cpu_kernels().dots;
  const at::Tensor in_fp32 = x.to(at::kFloat).contiguous(), split = at::empty_like(in_fp32);
  dots.split_pairs(in_fp32.const_data_ptr<float>(), split.numel(), split.data_ptr<float>());
  const ThinTokens tokens(split);
  return each_row(x, w.rows, [&] {
    return [&](int64_t row, float* out) {
      const GroupedRow from = row_in_groups(w, row);
      dots.dot_4bit({.packed = from.packed,
                     .first = 0,
                     .block_size = w.block_size,
                     .table = table_of(0).data(),
                     .scales = from.scales,
                     .zeros = from.zeros},
                    w.columns, tokens.x, tokens.count, out);
    };
  });
}

}  // namespace

constinit const FormatOps kInt4GroupsOps = {.format = QuantFormat::kInt4Groups,
                                            .quantize = nullptr,
                                            .unpack_fp32 = unpack_int4_groups<float>,
                                            .unpack_bf16 = unpack_int4_groups<uint16_t>,
                                            .row_bytes = bytes_of_int4_row,
                                            .splits_at = splits_at_any_row,
                                            .narrow = narrow_grouped_rows,
                                            .select_rows = select_grouped_rows,
                                            .values_per_block = columns_together,
                                            .part = part_of_groups,
                                            .require_sizes = require_group_sizes,
                                            .has_whole_groups = has_thin_groups,
                                            .thin_product = thin_product_of_groups,
                                            .cuda = &kInt4GroupsLaunches};

}  // namespace sftrun::kernels
