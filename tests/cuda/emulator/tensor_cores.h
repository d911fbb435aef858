#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "emulator.h"

// What src/kernels/cuda/tensor_cores.cuh asks of the hardware in PTX: products of m16n8k16,
// ldmatrix and cp.async, with each lane's share of a matrix where PTX has it.
namespace emulator {

/// Element i (0 or 1) of a word that holds two.
template <typename T>
float element(uint32_t word, int i) {
  const auto bits = static_cast<uint16_t>(word >> (16 * i));
  T value;
  memcpy(static_cast<void*>(&value), &bits, sizeof(bits));
  return static_cast<float>(value);
}

struct Vector {
  float values[16];

  template <typename T>
  void set(unsigned at, uint32_t word) {
    values[at] = element<T>(word, 0);
    values[at + 1] = element<T>(word, 1);
  }
};

/// One after the other, as the sum's rounding has it. Half of the time of the attention kernels'
/// tests would go into AddressSanitizer's questions about these 32 numbers.
__attribute__((no_sanitize("address"))) inline void add_products(float& sum, const Vector& a,
                                                                 const Vector& b) {
  for (unsigned k = 0; k < 16; ++k) sum += a.values[k] * b.values[k];
}

template <typename T>
void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Words {
    uint32_t a[4], b[2];
  };
  const Words own{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  share_in_warp(&own, [&](const void* const* lanes) {
    const auto words_of = [&](unsigned at) { return static_cast<const Words*>(lanes[at]); };
    const unsigned row = lane() / 4, column = lane() % 4 * 2;
    Vector left[2], right[2];  // rows `row` and `row` + 8 of a, columns `column` and the next of b
    for (unsigned pair = 0; pair < 4; ++pair) {
      const Words& of_row = *words_of(row * 4 + pair);
      for (unsigned i = 0; i < 2; ++i) {
        const Words& of_column = *words_of((column + i) * 4 + pair);
        for (unsigned half = 0; half < 2; ++half) {
          left[i].set<T>(half * 8 + pair * 2, of_row.a[i + half * 2]);
          right[i].set<T>(half * 8 + pair * 2, of_column.b[half]);
        }
      }
    }
    for (unsigned i = 0; i < 4; ++i) add_products(sums[i], left[i / 2], right[i % 2]);
  });
}

inline void load_matrices(uint32_t (&words)[4], const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) fail("a row for ldmatrix is not aligned");
  share_in_warp(row, [&](const void* const* rows) {
    const unsigned first = lane() / 4, second = lane() % 4 * 2;
    for (unsigned i = 0; i < 4; ++i) {
      uint16_t pair[2];
      for (unsigned e = 0; e < 2; ++e) {
        const unsigned at = transposed ? second + e : first,
                       column = transposed ? first : second + e;
        pair[e] = static_cast<const uint16_t*>(rows[8 * i + at])[column];
      }
      memcpy(&words[i], pair, sizeof(pair));
    }
  });
}

}  // namespace emulator
