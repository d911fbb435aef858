#pragma once

#include <cstdint>

#include "cuda/packed.h"
#include "cuda/types.h"
#include "sftrun/weights/ggml_type.h"

namespace sftrun::kernels::cuda {

/// Destination of dequantised values: row stride in elements.
struct ValueRows {
  void* y;
  int64_t stride;
};
/// Dequantises a 4-bit matrix, whose view has no tables yet.
void launch_dequantize_4bit(Type type, const FourBitView& matrix, const FourBitTables& tables,
                            const ValueRows& to, Stream stream);
/// Dequantises an 8-bit matrix.
void launch_dequantize_8bit(Type type, const EightBitView& matrix, const ValueRows& to,
                            Stream stream);
/// Dequantises an e4m3 matrix with scales of blocks.
void launch_dequantize_fp8_blocks(Type type, const Fp8BlockView& matrix, const ValueRows& to,
                                  Stream stream);
/// Dequantises integers of 4 bits in groups.
void launch_dequantize_int4_groups(Type type, const Int4GroupView& matrix, const ValueRows& to,
                                   Stream stream);
/// to [columns, rows] = transpose of from [rows, columns].
void launch_transpose_codes(const uint8_t* from, uint8_t* to, int64_t rows, int64_t columns,
                            Stream stream);
/// Rounds x [rows, columns] * gains [columns] (null: 1) to codes [rows, columns] and scales
/// scales [rows]: `round_to_e4m3` of sftrun/kernels/quant.h.
void launch_round_to_e4m3(Type type, const void* x, const float* gains, uint8_t* codes,
                          float* scales, int64_t rows, int64_t columns, Stream stream);
/// Dequantises consecutive ggml blocks; each row is a whole number of blocks.
void launch_dequantize_ggml(Type type, weights::GgmlType ggml_type, const uint8_t* blocks,
                            int64_t rows, int64_t columns, const ValueRows& to, Stream stream);

}  // namespace sftrun::kernels::cuda
