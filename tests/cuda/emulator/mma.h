#pragma once

#include <cstdint>

#include "emulator.h"

// The tensor cores' interface (CUDA C++ Programming Guide, "Warp Matrix Functions") as far as the
// kernels use it. Lane 0 holds the whole 16 x 16 tile, which the real one spreads over the warp. That all lanes come
// to mma_sync is not checked.
namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major };

template <typename Use, int kRows, int kColumns, int kDepth, typename T, typename Layout = void>
struct fragment {
  float values[16][16];
};

/// What the hardware requires of the address and the rows of a tile.
template <typename T>
void require_aligned(const T* tile, unsigned lead) {
  if (reinterpret_cast<uintptr_t>(tile) % 32 != 0 || lead * sizeof(T) % 16 != 0)
    emulator::fail("a tile for tensor cores is not aligned");
}

template <typename Fragment>
void fill_fragment(Fragment& fragment, float value) {
  if (emulator::lane() != 0) return;
  for (auto& row : fragment.values)
    for (float& element : row) element = value;
}

template <typename Use, typename T, typename Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout>& to, const T* from, unsigned lead) {
  require_aligned(from, lead);
  constexpr bool kByRows = std::is_same_v<Layout, row_major>;
  for (int row = 0; emulator::lane() == 0 && row < 16; ++row) {
    for (int column = 0; column < 16; ++column)
      to.values[row][column] =
          static_cast<float>(kByRows ? from[row * lead + column] : from[column * lead + row]);
  }
  __syncwarp();
}

template <typename A, typename B, typename Sums>
void mma_sync(Sums& out, const A& a, const B& b, const Sums& start) {
  if (emulator::lane() != 0) return;
  Sums sums;
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      float sum = start.values[row][column];
      for (int k = 0; k < 16; ++k) sum += a.values[row][k] * b.values[k][column];
      sums.values[row][column] = sum;
    }
  }
  out = sums;
}

template <typename Fragment>
void store_matrix_sync(float* to, const Fragment& from, unsigned lead, layout_t /*layout*/) {
  require_aligned(to, lead);
  if (emulator::lane() == 0) {
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 16; ++column)
        to[row * lead + column] = from.values[row][column];
  }
  __syncwarp();
}

}  // namespace nvcuda::wmma
