#pragma once

#include <cstdint>
#include <cstring>

#include "algorithms.h"

/// Frozen matrices in fewer bits (`QuantizedMatrix`) as CUDA kernels read them, compiled for the
/// host as well. Each is read in groups of values: `decode(row, group, values)` writes those of a
/// group before they are multiplied by the factor that it returns.
namespace sftrun::kernels::cuda {

#include "sftrun/weights/eight_bits.inl"

/// @pre aligned to 4 bytes
SFTRUN_HOST_DEVICE uint32_t load_word(const uint8_t* p) {
#ifdef __CUDA_ARCH__
  return __ldcs(reinterpret_cast<const unsigned int*>(p));  // read once: not to stay in caches
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
  static constexpr int kGroup = 8;

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

  SFTRUN_HOST_DEVICE float decode(int64_t row, int64_t group, float* values) const {
    const int64_t first = row * columns + group * kGroup;
    const uint32_t word = load_word(packed + first / 2);
    // Places in the table, in bytes: the first of each byte's two codes is the high one.
    const uint32_t firsts = (word & 0xf0f0f0f0U) >> 2, seconds = (word & 0x0f0f0f0fU) << 2;
    for (int i = 0; i < kGroup; i += 2) {
      values[i] = at_byte(firsts >> (4 * i) & 0xffU);
      values[i + 1] = at_byte(seconds >> (4 * i) & 0xffU);
    }
    return factor<kNested>(first >> block_shift);
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
  static constexpr int kGroup = 8, kRowsAtOnce = 2;

  const uint8_t* codes;
  const float* factors;  ///< [rows]; null: codes are the values
  int64_t rows, columns;
  EightBits form;

  /// Value i of the whole, rounded after every operation.
  SFTRUN_HOST_DEVICE float value(int64_t i) const {
    const float factor = factors == nullptr ? 1.0F : factors[i / columns];
    return form == EightBits::kE4m3 ? e4m3_value(codes[i]) * factor : int8_value(codes[i], factor);
  }
  /// Those of a group, from value `first` on, rounded after every operation.
  /// @pre groups_are_whole()
  SFTRUN_HOST_DEVICE void group_values(int64_t first, float* values) const {
    const uint32_t words[2] = {load_word(codes + first), load_word(codes + first + 4)};
    const float factor = factors == nullptr ? 1.0F : factors[first / columns];
    for (int i = 0; i < kGroup; ++i) {
      const auto code = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
      values[i] = form == EightBits::kE4m3 ? e4m3_value(code) * factor : int8_value(code, factor);
    }
  }
  /// @pre groups_are_whole()
  SFTRUN_HOST_DEVICE float decode(int64_t row, int64_t group, float* values) const {
    const uint8_t* from = codes + row * columns + group * kGroup;
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
  static constexpr int kGroup = 32, kRowsAtOnce = 1;

  const uint8_t* blocks;
  int64_t rows, columns;

  SFTRUN_HOST_DEVICE float decode(int64_t row, int64_t group, float* values) const {
    constexpr int kGroups = Format::kNumbers / kGroup;
    const int64_t at = row * (columns / kGroup) + group;
    Format::decode(blocks + at / kGroups * Format::kBytes, static_cast<int>(at % kGroups), values);
    return 1.0F;
  }
};

}  // namespace sftrun::kernels::cuda
