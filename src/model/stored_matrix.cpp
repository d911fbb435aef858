#include "sftrun/model/stored_matrix.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "sftrun/core/error.h"
#include "sftrun/weights/int4_groups.h"

namespace sftrun::model {
namespace {

using Checkpoint = std::shared_ptr<const weights::Checkpoint>;
using Shape = std::vector<int64_t>;

/// A view of the mapped bytes if they are aligned; else a copy.
at::Tensor tensor_over(std::span<const std::byte> bytes, at::ScalarType dtype,
                       const Checkpoint& checkpoint) {
  const auto count = static_cast<int64_t>(bytes.size() / c10::elementSize(dtype));
  if (reinterpret_cast<uintptr_t>(bytes.data()) % c10::elementSize(dtype) == 0) {
    return at::from_blob(
        const_cast<std::byte*>(bytes.data()), {count}, [checkpoint](void*) {},
        at::TensorOptions().dtype(dtype));
  }
  at::Tensor copy = at::empty({count}, at::TensorOptions().dtype(dtype));
  std::memcpy(copy.data_ptr(), bytes.data(), bytes.size());
  return copy;
}

/// The table in the file must equal the one that the format prescribes.
void require_same(std::span<const std::byte> stored, std::span<const float> ours,
                  const std::string& name, const char* what) {
  for (size_t i = 0; i < ours.size(); ++i) {
    float value;
    std::memcpy(&value, stored.data() + i * sizeof(float), sizeof(float));
    if (value == ours[i]) continue;
    throw DataError(
        fmt::format("tensor `{}`: value {} of {} is {}, but bitsandbytes uses {}", name, i, what,
                    value, ours[i]),
        {}, "quantise the model again, or train with tuning.quant: none, which accepts any values");
  }
}

/// In fp32. The file may hold them in another dtype, or once for the whole matrix.
/// @param count of rows, or of tiles
at::Tensor scales_of(const weights::CodedMatrix& stored, int64_t count) {
  at::Tensor scales = at::empty({count}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) scales.data_ptr<float>()[i] = stored.scale(i);
  return scales;
}

/// Bytes that follow one another in a file are used in place.
at::Tensor codes_of(const std::vector<weights::CodedMatrix>& parts, const Checkpoint& checkpoint) {
  const std::byte* first = parts.front().codes.data();
  size_t size = 0;
  bool is_one = true;
  for (const weights::CodedMatrix& part : parts) {
    is_one = is_one && part.codes.data() == first + size;
    size += part.codes.size();
  }
  if (is_one) return tensor_over({first, size}, at::kByte, checkpoint);
  at::Tensor codes = at::empty({static_cast<int64_t>(size)}, at::kByte);
  auto* to = codes.data_ptr<uint8_t>();
  for (const weights::CodedMatrix& part : parts) {
    std::memcpy(to, part.codes.data(), part.codes.size());
    to += part.codes.size();
  }
  return codes;
}

/// Matrices with one scale per row, or per tile, whose rows follow one another.
kernels::QuantizedMatrix below_one_another(const std::vector<weights::CodedMatrix>& parts,
                                           const Checkpoint& checkpoint) {
  const weights::CodedMatrix& first = parts.front();
  kernels::QuantizedMatrix matrix;
  matrix.format = first.format;
  matrix.block_size = first.tile;
  matrix.packed = codes_of(parts, checkpoint);
  std::vector<at::Tensor> scales, block_rows;
  int64_t before = 0;  // rows of tiles
  for (const weights::CodedMatrix& part : parts) {
    SFTRUN_CHECK(part.block_size == 0 && part.tile == first.tile);
    if (part.tile == 0) {
      scales.push_back(scales_of(part, part.rows));
      continue;
    }
    const int64_t count = (part.rows + part.tile - 1) / part.tile;
    scales.push_back(scales_of(part, count * part.tiles_of_row()));
    block_rows.push_back(at::floor_divide(at::arange(part.rows), part.tile).add_(before));
    before += count;
  }
  matrix.absmax = at::cat(scales);
  if (!block_rows.empty()) matrix.block_rows = at::cat(block_rows).to(at::kInt);
  return matrix;
}

/// Integers in groups, in the one order that kernels read; the rows of all parts follow one another.
kernels::QuantizedMatrix in_groups(const std::vector<weights::CodedMatrix>& parts) {
  constexpr int64_t kRowsAtOnce = 64;
  const weights::CodedMatrix& first = parts.front();
  const int64_t row_bytes = (first.columns + 1) / 2, groups = first.groups_of_row();
  int64_t rows = 0;
  for (const weights::CodedMatrix& part : parts) {
    SFTRUN_CHECK(part.group == first.group && part.groups_of_row() == groups);
    rows += part.rows;
  }
  kernels::QuantizedMatrix matrix;
  matrix.format = first.format;
  matrix.block_size = first.group;
  matrix.packed = at::empty({rows * row_bytes}, at::kByte);
  matrix.absmax = at::empty({rows * groups}, at::kFloat);
  matrix.zeros = at::empty({rows * groups}, at::kByte);
  auto *packed = matrix.packed.data_ptr<uint8_t>(), *zeros = matrix.zeros.data_ptr<uint8_t>();
  auto* scales = matrix.absmax.data_ptr<float>();
  int64_t before = 0;
  for (const weights::CodedMatrix& part : parts) {
    const int64_t runs = (part.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    at::parallel_for(0, runs, 1, [&](int64_t begin, int64_t end) {
      for (int64_t run = begin; run < end; ++run) {
        const int64_t row = run * kRowsAtOnce, count = std::min(kRowsAtOnce, part.rows - row),
                      to = before + row;
        weights::repack_int4(part, row, count, packed + to * row_bytes);
        weights::unpack_int4_groups(part, row, count, scales + to * groups, zeros + to * groups);
      }
    });
    before += part.rows;
  }
  const std::vector<int32_t> of_columns = weights::int4_column_groups(first);
  if (!of_columns.empty()) matrix.column_groups = at::tensor(of_columns, at::kInt);
  return matrix;
}

kernels::QuantizedMatrix from(const weights::CodedParts& stored, const Shape& /*shape*/,
                              const std::string& /*name*/, const Checkpoint& checkpoint) {
  if (stored.parts.front().group > 0) return in_groups(stored.parts);
  return below_one_another(stored.parts, checkpoint);
}

kernels::QuantizedMatrix from(const weights::CodedMatrix& stored, const Shape& /*shape*/,
                              const std::string& name, const Checkpoint& checkpoint) {
  if (stored.group > 0) return in_groups({stored});
  if (stored.block_size == 0) return below_one_another({stored}, checkpoint);
  kernels::QuantizedMatrix matrix;
  matrix.format = stored.format;
  matrix.block_size = stored.block_size;
  if (!stored.table.empty())
    require_same(stored.table, kernels::quant_table(matrix.format), name, "quant_map");
  matrix.packed = tensor_over(stored.codes, at::kByte, checkpoint);
  if (!stored.is_nested) {
    matrix.absmax = tensor_over(stored.scales, at::kFloat, checkpoint);
    return matrix;
  }
  const at::Tensor& map = kernels::nested_map();
  require_same(stored.nested_map, {map.const_data_ptr<float>(), static_cast<size_t>(map.numel())},
               name, "nested_quant_map");
  matrix.codes = tensor_over(stored.scales, at::kByte, checkpoint);
  matrix.nested_absmax = tensor_over(stored.nested_scales, at::kFloat, checkpoint);
  matrix.offset = stored.offset;
  return matrix;
}

at::Tensor bytes_of_blocks(const weights::GgmlBlocks& stored, const Checkpoint& checkpoint) {
  if (stored.pieces.size() == 1 && stored.rows.empty())
    return tensor_over(stored.pieces[0], at::kByte, checkpoint);
  size_t total = 0;
  for (const auto& piece : stored.pieces) total += piece.size();
  at::Tensor bytes = at::empty({static_cast<int64_t>(total)}, at::kByte);
  auto* to = bytes.data_ptr<uint8_t>();
  const auto append = [&](const std::byte* from, size_t size) {
    std::memcpy(to, from, size);
    to += size;
  };
  if (stored.rows.empty()) {
    for (const auto& piece : stored.pieces) append(piece.data(), piece.size());
    return bytes;
  }
  const size_t row_bytes = total / stored.rows.size();
  for (const int64_t row : stored.rows)
    append(stored.pieces[0].data() + static_cast<size_t>(row) * row_bytes, row_bytes);
  return bytes;
}

kernels::QuantizedMatrix from(const weights::GgmlBlocks& stored, const Shape& /*shape*/,
                              const std::string& /*name*/, const Checkpoint& checkpoint) {
  kernels::QuantizedMatrix matrix;
  matrix.format = QuantFormat::kGgml;
  matrix.ggml_type = static_cast<weights::GgmlType>(stored.type.id);
  matrix.packed = bytes_of_blocks(stored, checkpoint);
  return matrix;
}

/// ggml's MXFP4 block layout: the exponent, then 32 codes, the first 16 in the low nibbles.
void to_ggml_block(const std::byte* codes, std::byte exponent, uint8_t* to) {
  constexpr int kHalf = 16;
  *to++ = static_cast<uint8_t>(exponent);
  const auto code = [&](int i) {
    const auto byte = static_cast<uint8_t>(codes[i / 2]);
    return i % 2 == 0 ? byte & 15 : byte >> 4;
  };
  for (int i = 0; i < kHalf; ++i) to[i] = static_cast<uint8_t>(code(i) | code(i + kHalf) << 4);
}

kernels::QuantizedMatrix from(const weights::Mxfp4Experts& stored, const Shape& shape,
                              const std::string& name, const Checkpoint& /*checkpoint*/) {
  constexpr int64_t kBlock = 32, kCodes = 16, kBytes = 17;
  weights::require_numbers(stored.exponents, name);
  const int64_t rows = shape[1], blocks = shape[2] / kBlock;
  kernels::QuantizedMatrix matrix;
  matrix.format = QuantFormat::kGgml;
  matrix.ggml_type = weights::GgmlType::kMxfp4;
  matrix.packed = at::empty({shape[0] * rows * blocks * kBytes}, at::kByte);
  auto* to = matrix.packed.data_ptr<uint8_t>();
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t half = rows / 2, in_file = !stored.rows_in_turn ? row
                                               : row < half         ? 2 * row
                                                                    : 2 * (row - half) + 1;
      const int64_t first = (expert * rows + in_file) * blocks;
      for (int64_t block = first; block < first + blocks; ++block, to += kBytes) {
        to_ggml_block(stored.codes.data() + block * kCodes,
                      stored.exponents[static_cast<size_t>(block)], to);
      }
    }
  }
  return matrix;
}

std::span<const std::byte> bytes_of_tensor(const at::Tensor& x) {
  if (!x.defined()) return {};
  SFTRUN_CHECK(x.is_cpu() && x.is_contiguous());
  return {static_cast<const std::byte*>(x.const_data_ptr()), x.nbytes()};
}

}  // namespace

kernels::QuantizedMatrix stored_matrix(const weights::PackedMatrix& packed,
                                       const std::vector<int64_t>& shape, const std::string& name,
                                       Checkpoint checkpoint) {
  SFTRUN_CHECK(shape.size() == 2 || shape.size() == 3);
  kernels::QuantizedMatrix matrix =
      std::visit([&](const auto& stored) { return from(stored, shape, name, checkpoint); }, packed);
  matrix.columns = shape.back();
  matrix.rows = shape.size() == 2 ? shape[0] : shape[0] * shape[1];
  return matrix;
}

weights::CodedMatrix coded_view(const kernels::QuantizedMatrix& matrix) {
  const bool is_nested = matrix.is_nested();
  return {.format = matrix.format,
          .rows = matrix.rows,
          .columns = matrix.columns,
          .block_size = matrix.block_size,
          .codes = bytes_of_tensor(matrix.packed),
          .scales = bytes_of_tensor(is_nested ? matrix.codes : matrix.absmax),
          .table = std::as_bytes(kernels::quant_table(matrix.format)),
          .is_nested = is_nested,
          .nested_scales = bytes_of_tensor(matrix.nested_absmax),
          .nested_map = bytes_of_tensor(is_nested ? kernels::nested_map() : at::Tensor()),
          .offset = matrix.offset};
}

bool is_stored_as(const weights::PackedMatrix& packed, QuantFormat format) {
  const weights::CodedMatrix* coded = weights::first_coded(packed);
  return coded != nullptr && coded->format == format;
}

}  // namespace sftrun::model
