#pragma once

#include <cstdint>
#include <cstring>

#include "algorithms.h"

/// Quantised matrices (`QuantizedMatrix`) as CUDA kernels read them, compiled for the host as well.
/// Each is decoded in groups of eight values: those of group g of a row (or of the whole matrix)
/// are in the codes or the block that begins `bytes_before(g)` bytes behind the row's first, and
/// `decode(from, row, g, values)` writes them before they are multiplied by the factor that it
/// returns; `final_values` multiplies and rounds as the CPU does. `from` is where that code or
/// block lies: in a copy of the bytes, which begins as many bytes behind a multiple of 16 as they
/// do.
namespace sftrun::kernels::cuda {

#include "sftrun/weights/eight_bits.inl"

inline constexpr int kGroup = 8;  ///< values that are decoded together

/// The row of a group of the whole, of which a row has `of_row`. GPUs divide 64 bits several times
/// as slowly as 32.
SFTRUN_HOST_DEVICE int64_t row_of_group(int64_t group, int64_t of_row) {
  constexpr int64_t kMost = int64_t{1} << 32;
  if (group >= kMost || of_row >= kMost) return group / of_row;
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

/// What codes stand for: those of the values, and those of factors that are themselves quantised.
struct FourBitTables {
  float values[16];
  float nested[256];
};

/// A matrix in 4 bits; of one with nested factors `absmax` is null.
struct FourBitView {
  const uint8_t* packed;
  const float* absmax;
  const uint8_t* codes;
  const float* nested_absmax;
  float offset;
  int64_t block_size, first_block, rows, columns;
  int block_shift;              ///< of a power of two: its logarithm; else -1
  const FourBitTables* tables;  ///< a kernel's own copy

  SFTRUN_HOST_DEVICE bool is_nested() const { return absmax == nullptr; }
  /// Of a block.
  template <bool kNested>
  SFTRUN_HOST_DEVICE float factor(int64_t block) const {
    constexpr int64_t kNestedBlock = 256;
    if (!kNested) return absmax[block];
    const float scaled =
        tables->nested[codes[block]] * nested_absmax[(first_block + block) / kNestedBlock];
    return scaled + offset;
  }
  /// Value i of the whole, rounded after every operation.
  SFTRUN_HOST_DEVICE float value(int64_t i) const {
    const uint8_t byte = packed[i / 2];
    const int64_t block = i / block_size;
    return tables->values[i % 2 == 0 ? byte >> 4 : byte & 15] *
           (is_nested() ? factor<true>(block) : factor<false>(block));
  }
  /// Whether rows consist of groups, and a group is one word with one factor.
  bool groups_are_whole() const {
    return columns % kGroup == 0 && block_shift >= 3 &&
           reinterpret_cast<uintptr_t>(packed) % 4 == 0;
  }
};

/// Its groups; of a kind of factors that kernels are compiled for, so that those of several rows
/// are loaded without waiting for one another.   @pre groups_are_whole()
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
    const uint32_t word = load_word(from);
    // Places in the table, in bytes: the first of each byte's two codes is the high one.
    const uint32_t firsts = (word & 0xf0f0f0f0U) >> 2, seconds = (word & 0x0f0f0f0fU) << 2;
    for (int i = 0; i < kGroup; i += 2) {
      values[i] = at_byte(firsts >> (4 * i) & 0xffU);
      values[i + 1] = at_byte(seconds >> (4 * i) & 0xffU);
    }
    return factor<kNested>((row * columns + group * kGroup) >> block_shift);
  }
  /// Of group `group` of the whole.
  SFTRUN_HOST_DEVICE void final_values(const uint8_t* from, int64_t group, float* values) const {
    const float factor = decode(from, 0, group, values);
    for (int i = 0; i < kGroup; ++i) values[i] *= factor;
  }

 private:
  SFTRUN_HOST_DEVICE float at_byte(uint32_t place) const {
    return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(tables->values) + place);
  }
};

/// Calls body(groups) of the view's kind.
template <typename Body>
void with_groups(const FourBitView& view, Body&& body) {
  if (view.is_nested())
    body(FourBitGroups<true>(view));
  else
    body(FourBitGroups<false>(view));
}

/// A matrix in 8 bits.
struct EightBitView {
  static constexpr int kRowsAtOnce = 2;

  const uint8_t* codes;
  const float* factors;  ///< [rows]; null: codes are the values
  int64_t rows, columns;
  EightBits form;

  /// Value i of the whole, rounded after every operation.
  SFTRUN_HOST_DEVICE float value(int64_t i) const {
    const float factor = factors == nullptr ? 1.0F : factors[i / columns];
    return form == EightBits::kE4m3 ? e4m3_value(codes[i]) * factor : int8_value(codes[i], factor);
  }
  SFTRUN_HOST_DEVICE const uint8_t* bytes() const { return codes; }
  SFTRUN_HOST_DEVICE int64_t row_bytes() const { return columns; }
  SFTRUN_HOST_DEVICE static constexpr int64_t bytes_before(int64_t group) { return group * kGroup; }
  /// Of group `group` of the whole, times the row's factor, rounded after every operation.
  /// @pre groups_are_whole()
  SFTRUN_HOST_DEVICE void final_values(const uint8_t* from, int64_t group, float* values) const {
    const uint32_t words[2] = {load_word(from), load_word(from + 4)};
    const float factor = factors == nullptr ? 1.0F : factors[row_of_group(group, columns / kGroup)];
    for (int i = 0; i < kGroup; ++i) {
      const auto code = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
      values[i] = form == EightBits::kE4m3 ? e4m3_value(code) * factor : int8_value(code, factor);
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
    const float factor = factors == nullptr ? 1.0F : factors[row];
    return form == EightBits::kE4m3 ? factor : factor * kInverse127;
  }
  bool groups_are_whole() const {
    return columns % kGroup == 0 && reinterpret_cast<uintptr_t>(codes) % 4 == 0;
  }
};

/// A matrix in ggml's blocks, of which a row has a whole number.
/// @tparam Format of ggml_blocks.inl
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
  /// Of group `group` of the whole.
  SFTRUN_HOST_DEVICE void final_values(const uint8_t* from, int64_t group, float* values) const {
    decode(from, 0, group, values);
  }
};

}  // namespace sftrun::kernels::cuda
