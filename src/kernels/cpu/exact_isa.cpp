// Compiled once per instruction set, like kernels_isa.cpp, but with -ffp-contract=off: bit-equal to
// references that round after every operation.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "sftrun/kernels/cpu_table.h"
#include "sftrun/weights/ggml_type.h"

namespace sftrun::kernels::SFTRUN_ISA {
namespace {

#include "cpu/math.h"
#include "cpu/sixteen.h"
#include "sftrun/weights/ggml_blocks.inl"

using ggml::kGroup;

inline void store_numbers(const float* numbers, int64_t n, float* out) {
  std::memcpy(out, numbers, static_cast<size_t>(n) * sizeof(float));
}
inline void store_numbers(const float* numbers, int64_t n, uint16_t* out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(out + i, numbers[i]);
}

/// @tparam Out pointer, or an accumulator in its place (quant/dots_cpu.inl)
template <typename Format, typename Out>
SFTRUN_INLINE void decode_one(const uint8_t* block, int group, const Out& out) {
  float numbers[kGroup];
  Format::decode(block, group, numbers);
  store_numbers(numbers, kGroup, out);
}

#ifdef __AVX2__
#include "quant/ggml_cpu.inl"
#else
/// Groups [first, first + count) of consecutive blocks. Decodes several groups into a local array,
/// which cannot alias the blocks, before it stores them: this avoids store-forwarding stalls.
template <typename Format, typename T>
void decode_groups(const uint8_t* blocks, int64_t first, int64_t count, T* out) {
  constexpr int64_t kAtOnce = 16, kGroups = Format::kNumbers / kGroup;
  float numbers[kAtOnce * kGroup];
  for (int64_t done = 0; done < count; done += kAtOnce) {
    const int64_t groups = std::min(kAtOnce, count - done);
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t group = first + done + i;
      Format::decode(blocks + group / kGroups * Format::kBytes, static_cast<int>(group % kGroups),
                     numbers + i * kGroup);
    }
    store_numbers(numbers, groups * kGroup, out + done * kGroup);
  }
}
#endif

template <typename T>
void decode(uint32_t type, const uint8_t* blocks, int64_t first, int64_t count, T* out) {
  ggml::with_format(static_cast<weights::GgmlType>(type), [&](auto format) {
    decode_groups<decltype(format)>(blocks, first, count, out);
  });
}

/// Part of one group.
template <typename T>
void decode_some(uint32_t type, const uint8_t* blocks, int64_t first, int64_t n, T* out) {
  float group[kGroup];
  decode(type, blocks, first / kGroup, 1, group);
  for (int64_t i = 0; i < n; ++i) store(out + i, group[first % kGroup + i]);
}

}  // namespace

#include "cpu/exact_isa.h"

#include "adamw/adamw_8bit_cpu.inl"
#include "adamw/adamw_cpu.inl"
#include "quant/eight_bits_cpu.inl"
#include "quant/round_e4m3_cpu.inl"
// Depends on the files above.
#include "quant/dots_cpu.inl"

#include "matmul/dense_rows_cpu.inl"

template <typename T>
void dequantize_ggml(uint32_t type, const uint8_t* blocks, int64_t first, int64_t n, T* out) {
  const int64_t before = std::min(n, (kGroup - first % kGroup) % kGroup);
  if (before > 0) decode_some(type, blocks, first, before, out);
  const int64_t whole = (n - before) / kGroup;
  decode(type, blocks, (first + before) / kGroup, whole, out + before);
  const int64_t done = before + whole * kGroup;
  if (done < n) decode_some(type, blocks, first + done, n - done, out + done);
}

template void dequantize_8bit<float>(EightBits, const uint8_t*, int64_t, float, float*);
template void dequantize_8bit<uint16_t>(EightBits, const uint8_t*, int64_t, float, uint16_t*);
template float round_row_e4m3(const float*, const float*, int64_t, float*);
template float round_row_e4m3(const float*, const float*, int64_t, uint16_t*);
template float round_row_e4m3(const uint16_t*, const float*, int64_t, uint16_t*);
template void dequantize_ggml<float>(uint32_t, const uint8_t*, int64_t, int64_t, float*);
template void dequantize_ggml<uint16_t>(uint32_t, const uint8_t*, int64_t, int64_t, uint16_t*);

}  // namespace sftrun::kernels::SFTRUN_ISA
