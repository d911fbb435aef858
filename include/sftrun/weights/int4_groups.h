#pragma once

#include <cstdint>
#include <vector>

#include "sftrun/weights/packed.h"

/// Matrices in kInt4Groups, as files hold them and as kernels::QuantizedMatrix does. In files eight codes
/// are in a word of 32 bits. value = (code - code of 0) * scale; scales are of a row and a group of columns.
///   AWQ (gemm):  codes [columns, rows / 8]: of rows 0 to 7 in nibbles 0, 4, 1, 5, 2, 6, 3, 7;
///                zeros [groups, rows / 8] in the same order, scales [groups, rows].
///   GPTQ:        codes [columns / 8, rows]: of columns 0 to 7 in nibbles 0 to 7; zeros [groups, rows / 8]
///                of rows 0 to 7 in nibbles 0 to 7, minus one modulo 16 in version 1; scales [groups, rows].
///   compressed-tensors: codes [rows, columns / 8, rounded up], zeros [rows / 8, rounded up, groups], both
///                in nibbles 0 to 7; scales [rows, groups].
namespace sftrun::weights {

/// Codes of rows [first, first + count) to `out` [count, (columns + 1) / 2]: two in a byte, the first in the
/// high nibble.
void repack_int4(const CodedMatrix& matrix, int64_t first, int64_t count, uint8_t* out);
/// Scales and codes of 0 of rows [first, first + count), each [count, groups].
void unpack_int4_groups(const CodedMatrix& matrix, int64_t first, int64_t count, float* scales,
                        uint8_t* zeros);
/// [columns]; empty: column / group
std::vector<int32_t> int4_column_groups(const CodedMatrix& matrix);

}  // namespace sftrun::weights
