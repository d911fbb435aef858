#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "sftrun/core/rng.h"
#include "sftrun/kernels/quant.h"
#include "sftrun/weights/ggml_type.h"

/// Matrices of random bytes in every type of ggml's blocks.
namespace sftrun::test {

using weights::GgmlType;

/// Where a block has factors in fp16: kept finite.
struct BlockType {
  GgmlType type;
  std::vector<int> halves;
};
inline const std::vector<BlockType>& block_types() {
  static const std::vector<BlockType> types = {
      {GgmlType::kQ4_0, {0}},    {GgmlType::kQ4_1, {0, 2}}, {GgmlType::kQ5_0, {0}},
      {GgmlType::kQ5_1, {0, 2}}, {GgmlType::kQ8_0, {0}},    {GgmlType::kQ2_K, {80, 82}},
      {GgmlType::kQ3_K, {108}},  {GgmlType::kQ4_K, {0, 2}}, {GgmlType::kQ5_K, {0, 2}},
      {GgmlType::kQ6_K, {208}},  {GgmlType::kMxfp4, {}}};
  return types;
}

inline const weights::GgmlTypeInfo& info_of(GgmlType type) {
  return *weights::ggml_type_info(static_cast<uint32_t>(type));
}

inline kernels::QuantizedMatrix random_blocks(const BlockType& type, int64_t rows,
                                              int64_t blocks_of_row, uint64_t seed) {
  const weights::GgmlTypeInfo& info = info_of(type.type);
  kernels::QuantizedMatrix matrix;
  matrix.format = QuantFormat::kGgml;
  matrix.ggml_type = type.type;
  matrix.rows = rows;
  matrix.columns = blocks_of_row * info.block_size;
  matrix.packed = at::empty({rows * blocks_of_row * info.block_bytes}, at::kByte);
  RandomStream random(seed, info.id);
  auto* bytes = matrix.packed.data_ptr<uint8_t>();
  for (int64_t i = 0; i < matrix.packed.numel(); ++i)
    bytes[i] = static_cast<uint8_t>(random.next_u32());
  for (int64_t block = 0; block < rows * blocks_of_row; ++block, bytes += info.block_bytes) {
    for (const int half : type.halves) bytes[half + 1] &= 0xbf;
    if (type.type == GgmlType::kMxfp4) bytes[0] &= 0x7f;
  }
  return matrix;
}

}  // namespace sftrun::test
