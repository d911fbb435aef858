#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulator.h"

// What src/kernels/cuda/tensor_cores.cuh asks of the hardware in PTX: products of m16n8k16,
// ldmatrix and cp.async, with each lane's share of a matrix where PTX has it.
namespace emulator {

/// Element i (0 or 1) of a word that holds two.
template <typename T>
float element(uint32_t word, int i) {
  const uint32_t bits = word >> (16 * i) & 0xffffU;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return std::bit_cast<float>(bits << 16);
  const auto half = static_cast<uint16_t>(bits);
  T value;
  memcpy(static_cast<void*>(&value), &half, sizeof(half));
  return static_cast<float>(value);
}

/// A lane's share of a product: rows `lane / 4` and 8 further of a and of the sums, columns
/// `lane % 4 * 2` and the next; of b rows and columns the other way round.
struct Product {
  const uint32_t* a;
  uint32_t b[2];
  float* sums;
};

template <typename T>
void multiply_of_warp(void* const* lanes) {
  float a[16][16], b[16][8], sums[16][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (lanes[lane] == nullptr) fail("a product of tensor cores by a part of a warp");
    const Product& own = *static_cast<const Product*>(lanes[lane]);
    const unsigned first = lane / 4, second = lane % 4 * 2;
    for (unsigned half = 0; half < 2; ++half) {
      for (unsigned e = 0; e < 2; ++e) {
        const unsigned k = half * 8 + second + e;
        a[first][k] = element<T>(own.a[half * 2], static_cast<int>(e));
        a[first + 8][k] = element<T>(own.a[half * 2 + 1], static_cast<int>(e));
        b[k][first] = element<T>(own.b[half], static_cast<int>(e));
        sums[first + half * 8][second + e] = own.sums[half * 2 + e];
      }
    }
  }
  add_products(sums, a, b);
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned i = 0; i < 4; ++i)
      static_cast<const Product*>(lanes[lane])->sums[i] =
          sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

template <typename T>
void multiply_add(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  Product own{a, {b0, b1}, sums};
  together_in_warp(&own, multiply_of_warp<T>);
}

/// A lane's row of ldmatrix, and the words that it gets.
struct LoadedRow {
  const void* row;
  uint32_t* words;
};

template <bool kTransposed>
void load_for_warp(void* const* lanes) {
  const uint16_t* rows[32];
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (lanes[lane] == nullptr) fail("ldmatrix by a part of a warp");
    rows[lane] = static_cast<const uint16_t*>(static_cast<const LoadedRow*>(lanes[lane])->row);
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned first = lane / 4, second = lane % 4 * 2;
    for (unsigned i = 0; i < 4; ++i) {
      uint16_t pair[2];
      for (unsigned e = 0; e < 2; ++e)
        pair[e] = kTransposed ? rows[8 * i + second + e][first] : rows[8 * i + first][second + e];
      memcpy(&static_cast<const LoadedRow*>(lanes[lane])->words[i], pair, sizeof(pair));
    }
  }
}

inline void load_matrices(uint32_t (&words)[4], const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) fail("a row for ldmatrix is not aligned");
  LoadedRow own{row, words};
  together_in_warp(&own, transposed ? load_for_warp<true> : load_for_warp<false>);
}

}  // namespace emulator
