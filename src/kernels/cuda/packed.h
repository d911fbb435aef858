#pragma once

#include <cstdint>
#include <cstring>

#include "algorithms.h"

/// Views of quantised matrices (`QuantizedMatrix`) for CUDA kernels, also compiled for the host.
/// Matrices are decoded in groups of eight values. The codes (or ggml block) of group g of a row,
/// or of the whole matrix, begin `bytes_before(g)` bytes after the first. `decode(from, row, g,
/// values)` writes values that are still to be multiplied by the scale it returns; `final_values`
/// multiplies and rounds as the CPU does. `from` points to these codes or that block, possibly in a
/// copy with the same alignment modulo 16 bytes.
namespace sftrun::kernels::cuda {

#include "sftrun/weights/eight_bits.inl"

inline constexpr int kGroup = 8;  ///< values decoded together

/// Row of a group, with `of_row` groups per row. Uses 32-bit division where possible, which is
/// several times as fast as 64-bit division on GPUs.
SFTRUN_HOST_DEVICE int64_t row_of_group(int64_t group, int64_t of_row) {
  constexpr int64_t kMax = int64_t{1} << 32;
  if (group >= kMax || of_row >= kMax) return group / of_row;
  return static_cast<uint32_t>(group) / static_cast<uint32_t>(of_row);
}

/// @pre aligned to 4 bytes
SFTRUN_HOST_DEVICE uint32_t load_word(const uint8_t* p) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const unsigned int*>(p);
#else
  uint32_t word;
  memcpy(&word, p, 4);
  return word;
#endif
}

/// Values of the 4-bit codes, and of the codes of nested absmax.
struct FourBitTables {
  float values[16];
  float nested[256];
};

/// The values of a group's eight codes, without its scale.
SFTRUN_HOST_DEVICE void values_of_codes(const FourBitTables& tables, uint32_t word, float* values) {
  const auto at_byte = [&](uint32_t place) {
    return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(tables.values) + place);
  };
  // Byte offsets into the table; the first code of each byte is in the high nibble.
  const uint32_t firsts = (word & 0xf0f0f0f0U) >> 2, seconds = (word & 0x0f0f0f0fU) << 2;
  for (int i = 0; i < kGroup; i += 2) {
    values[i] = at_byte(firsts >> (4 * i) & 0xffU);
    values[i + 1] = at_byte(seconds >> (4 * i) & 0xffU);
  }
}

/// A 4-bit matrix; `absmax` is null if it is nested.
struct FourBitView {
  const uint8_t* packed;
  const float* absmax;
  const uint8_t* codes;
  const float* nested_absmax;
  float offset;
  int64_t block_size, first_block, rows, columns;
  int block_shift;              ///< log2 of block_size if that is a power of two; else -1
  int nested_shift;             ///< log2 of the blocks that share a nested_absmax
  const FourBitTables* tables;  ///< the kernel's copy

  SFTRUN_HOST_DEVICE bool is_nested() const { return absmax == nullptr; }
  /// Scale of a block.
  template <bool kNested>
  SFTRUN_HOST_DEVICE float scale(int64_t block) const {
    if (!kNested) return absmax[block];
    const float scaled =
        tables->nested[codes[block]] * nested_absmax[(first_block + block) >> nested_shift];
    return scaled + offset;
  }
  /// Value i of the whole matrix, rounded after every operation.
  SFTRUN_HOST_DEVICE float value(int64_t i) const {
    const uint8_t byte = packed[i / 2];
    const int64_t block = i / block_size;
    return tables->values[i % 2 == 0 ? byte >> 4 : byte & 15] *
           (is_nested() ? scale<true>(block) : scale<false>(block));
  }
  /// Whether rows are whole groups and each group is one aligned word within one block.
  bool groups_are_whole() const {
    return columns % kGroup == 0 && block_shift >= 3 &&
           reinterpret_cast<uintptr_t>(packed) % 4 == 0;
  }
};

/// A 4-bit matrix in groups. kNested is a template parameter so that the scales of several rows are
/// loaded independently.   @pre groups_are_whole()
template <bool kNested>
struct FourBitGroups : FourBitView {
  static constexpr int kRowsAtOnce = 4;

  explicit FourBitGroups(const FourBitView& view) : FourBitView(view) {}

  SFTRUN_HOST_DEVICE const uint8_t* bytes() const { return packed; }
  SFTRUN_HOST_DEVICE int64_t row_bytes() const { return columns / 2; }
  SFTRUN_HOST_DEVICE static constexpr int64_t bytes_before(int64_t group) {
    return group * (kGroup / 2);
  }
  SFTRUN_HOST_DEVICE float decode(const uint8_t* from, int64_t row, int64_t group,
                                  float* values) const {
    values_of_codes(*tables, load_word(from), values);
    return scale<kNested>((row * columns + group * kGroup) >> block_shift);
  }
  /// @param group index in the whole matrix
  SFTRUN_HOST_DEVICE void final_values(const uint8_t* from, int64_t group, float* values) const {
    const float scale = decode(from, 0, group, values);
    for (int i = 0; i < kGroup; ++i) values[i] *= scale;
  }
};

/// Calls body(FourBitGroups) for the view, nested or not.
template <typename Body>
void with_groups(const FourBitView& view, Body&& body) {
  if (view.is_nested())
    body(FourBitGroups<true>(view));
  else
    body(FourBitGroups<false>(view));
}

/// An 8-bit matrix.
struct EightBitView {
  static constexpr int kRowsAtOnce = 2;

  const uint8_t* codes;
  const float* scales;  ///< [rows]; null: codes are the values
  int64_t rows, columns;
  EightBits form;

  /// Value i of the whole matrix, rounded after every operation.
  SFTRUN_HOST_DEVICE float value(int64_t i) const {
    const float scale = scales == nullptr ? 1.0F : scales[i / columns];
    return form == EightBits::kE4m3 ? e4m3_value(codes[i]) * scale : int8_value(codes[i], scale);
  }
  SFTRUN_HOST_DEVICE const uint8_t* bytes() const { return codes; }
  SFTRUN_HOST_DEVICE int64_t row_bytes() const { return columns; }
  SFTRUN_HOST_DEVICE static constexpr int64_t bytes_before(int64_t group) { return group * kGroup; }
  /// Values times the row's scale, rounded after every operation.
  /// @param group index in the whole matrix   @pre groups_are_whole()
  SFTRUN_HOST_DEVICE void final_values(const uint8_t* from, int64_t group, float* values) const {
    const uint32_t words[2] = {load_word(from), load_word(from + 4)};
    const float scale = scales == nullptr ? 1.0F : scales[row_of_group(group, columns / kGroup)];
    for (int i = 0; i < kGroup; ++i) {
      const auto code = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
      values[i] = form == EightBits::kE4m3 ? e4m3_value(code) * scale : int8_value(code, scale);
    }
  }
  /// @pre groups_are_whole()
  SFTRUN_HOST_DEVICE float decode(const uint8_t* from, int64_t row, int64_t /*group*/,
                                  float* values) const {
    const uint32_t words[2] = {load_word(from), load_word(from + 4)};
    for (int i = 0; i < kGroup; ++i) {
      const auto code = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
      values[i] = form == EightBits::kE4m3 ? e4m3_value(code)
                                           : static_cast<float>(static_cast<int8_t>(code));
    }
    const float scale = scales == nullptr ? 1.0F : scales[row];
    return form == EightBits::kE4m3 ? scale : scale * kInverse127;
  }
  bool groups_are_whole() const {
    return columns % kGroup == 0 && reinterpret_cast<uintptr_t>(codes) % 4 == 0;
  }
};

/// An e4m3 matrix with one scale per block of rows and columns.
struct Fp8BlockView {
  static constexpr int kRowsAtOnce = 2;

  const uint8_t* codes;
  const float* scales;        ///< [rows of blocks, blocks_of_row]
  const int32_t* block_rows;  ///< [rows]: the row of blocks of each row
  int64_t rows, columns, blocks_of_row;
  int block_shift;  ///< log2 of the columns of a block, at least 3

  SFTRUN_HOST_DEVICE float scale(int64_t row, int64_t column) const {
    return scales[block_rows[row] * blocks_of_row + (column >> block_shift)];
  }
  /// Value i of the whole matrix, rounded after every operation.
  SFTRUN_HOST_DEVICE float value(int64_t i) const {
    const int64_t row = i / columns;
    return e4m3_value(codes[i]) * scale(row, i - row * columns);
  }
  SFTRUN_HOST_DEVICE const uint8_t* bytes() const { return codes; }
  SFTRUN_HOST_DEVICE int64_t row_bytes() const { return columns; }
  SFTRUN_HOST_DEVICE static constexpr int64_t bytes_before(int64_t group) { return group * kGroup; }
  /// @param group index in the row   @pre groups_are_whole()
  SFTRUN_HOST_DEVICE float decode(const uint8_t* from, int64_t row, int64_t group,
                                  float* values) const {
    const uint32_t words[2] = {load_word(from), load_word(from + 4)};
    for (int i = 0; i < kGroup; ++i)
      values[i] = e4m3_value(static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8)));
    return scale(row, group * kGroup);
  }
  /// Values times their scale, rounded after every operation.
  /// @param group index in the whole matrix   @pre groups_are_whole()
  SFTRUN_HOST_DEVICE void final_values(const uint8_t* from, int64_t group, float* values) const {
    const int64_t of_row = columns / kGroup, row = row_of_group(group, of_row);
    const float of_block = decode(from, row, group - row * of_row, values);
    for (int i = 0; i < kGroup; ++i) values[i] *= of_block;
  }
  bool groups_are_whole() const {
    return columns % kGroup == 0 && reinterpret_cast<uintptr_t>(codes) % 4 == 0;
  }
};

/// Integers of 4 bits with a scale and a zero point for each group of a row.
struct Int4GroupView {
  static constexpr int kRowsAtOnce = 2;

  const uint8_t* packed;  ///< [rows, row_bytes()], the first code of a byte in the high nibble
  const float* scales;    ///< [rows, groups_of_row]
  const uint8_t* zeros;   ///< [rows, groups_of_row]
  const int32_t* column_groups;  ///< [columns]: the group of each column; null: column / group_size
  int64_t rows, columns, groups_of_row, group_size;

  SFTRUN_HOST_DEVICE int64_t group_of(int64_t row, int64_t column) const {
    const int64_t group =
        column_groups != nullptr ? column_groups[column] : row_of_group(column, group_size);
    return row * groups_of_row + group;
  }
  /// Value i of the whole matrix, rounded after every operation.
  SFTRUN_HOST_DEVICE float value(int64_t i) const {
    const int64_t row = i / columns, column = i - row * columns, group = group_of(row, column);
    const uint8_t byte = packed[row * row_bytes() + column / 2];
    const int code = column % 2 == 0 ? byte >> 4 : byte & 15;
    return static_cast<float>(code - zeros[group]) * scales[group];
  }
  SFTRUN_HOST_DEVICE const uint8_t* bytes() const { return packed; }
  SFTRUN_HOST_DEVICE int64_t row_bytes() const { return (columns + 1) / 2; }
  SFTRUN_HOST_DEVICE static constexpr int64_t bytes_before(int64_t group) {
    return group * (kGroup / 2);
  }
  /// @param group of eight values, index in the row   @pre groups_are_whole()
  SFTRUN_HOST_DEVICE float decode(const uint8_t* from, int64_t row, int64_t group,
                                  float* values) const {
    const uint32_t word = load_word(from);
    const int64_t of_values = group_of(row, group * kGroup);
    const int zero = zeros[of_values];
    for (int i = 0; i < kGroup; ++i) {
      const int shift = i / 2 * 8 + (i % 2 == 0 ? 4 : 0);
      values[i] = static_cast<float>(static_cast<int>(word >> shift & 15U) - zero);
    }
    return scales[of_values];
  }
  /// Values times their scale, rounded after every operation.
  /// @param group of eight values, index in the whole matrix   @pre groups_are_whole()
  SFTRUN_HOST_DEVICE void final_values(const uint8_t* from, int64_t group, float* values) const {
    const int64_t of_row = columns / kGroup, row = row_of_group(group, of_row);
    const float scale = decode(from, row, group - row * of_row, values);
    for (int i = 0; i < kGroup; ++i) values[i] *= scale;
  }
  /// Whether eight values that are decoded together are one aligned word with one scale.
  bool groups_are_whole() const {
    const bool have_one_scale =
        column_groups == nullptr && (group_size % kGroup == 0 || group_size >= columns);
    return have_one_scale && columns % kGroup == 0 && reinterpret_cast<uintptr_t>(packed) % 4 == 0;
  }
};

/// A matrix in ggml blocks; each row is a whole number of blocks.
/// @tparam Format one of ggml_blocks.inl
template <typename Format>
struct GgmlView {
  static constexpr int kRowsAtOnce = 2;
  static constexpr int kGroupsOfBlock = Format::kNumbers / kGroup;

  const uint8_t* blocks;
  int64_t rows, columns;

  SFTRUN_HOST_DEVICE const uint8_t* bytes() const { return blocks; }
  SFTRUN_HOST_DEVICE int64_t row_bytes() const {
    return columns / Format::kNumbers * Format::kBytes;
  }
  SFTRUN_HOST_DEVICE static constexpr int64_t bytes_before(int64_t group) {
    return group / kGroupsOfBlock * Format::kBytes;
  }
  SFTRUN_HOST_DEVICE float decode(const uint8_t* from, int64_t /*row*/, int64_t group,
                                  float* values) const {
    constexpr int kDecodedTogether = 32, kParts = kDecodedTogether / kGroup;
    const auto in_block = static_cast<int>(group % kGroupsOfBlock);
    Format::template some<kGroup>(from, in_block / kParts, in_block % kParts * kGroup, values);
    return 1.0F;
  }
  /// @param group index in the whole matrix
  SFTRUN_HOST_DEVICE void final_values(const uint8_t* from, int64_t group, float* values) const {
    decode(from, 0, group, values);
  }
};

}  // namespace sftrun::kernels::cuda
