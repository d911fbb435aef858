#pragma once

#include <ATen/ATen.h>

#include <algorithm>

#include "../matmul/amx_tiles.h"
#include "../matmul/block_product.h"
#include "../row_kernels.h"

/// Memory layouts of tiled attention's operands, and their products. Each layout packs left
/// operands [rows, depth] and right operands [depth, columns] from rows with stride `stride`, of
/// which the first `valid` exist. Sizes are 64 or head_dim.
namespace sftrun::kernels {

/// Of `block_product`: row-major; right operands in bf16 with rows interleaved in pairs (VNNI).
template <typename T>
struct BlockLayout {
  using Value = T;
  using Packed = T;
  static int64_t size(int64_t rows, int64_t columns) { return rows * columns; }
  static void begin() {}
  static void end() { end_block_products(); }

  static void pack_left(const T* x, int64_t stride, int64_t valid, int64_t depth, T* to) {
    kernels().pack_rows(x, stride, valid, depth, to);
  }
  static void pack_left_transposed(const T* x, int64_t stride, int64_t valid, int64_t rows, T* to) {
    kernels().pack_transposed(x, stride, valid, rows, to);
  }
  static void pack_right(const T* x, int64_t stride, int64_t valid, int64_t columns, T* to) {
    through_pairs(kAttentionTile, columns, to,
                  [&](T* plain) { kernels().pack_rows(x, stride, valid, columns, plain); });
  }
  static void pack_right_transposed(const T* x, int64_t stride, int64_t valid, int64_t depth,
                                    T* to) {
    through_pairs(depth, kAttentionTile, to,
                  [&](T* plain) { kernels().pack_transposed(x, stride, valid, depth, plain); });
  }
  /// A 64 x 64 operand that was written row-major; `room` is memory for a packed one.
  static const T* left_square(const T* plain, T* /*room*/) { return plain; }
  static const T* right_square(const T* plain, T* room) {
    if constexpr (!kPairs) return plain;
    kernels().pair_rows(plain, kAttentionTile, kAttentionTile, room);
    return room;
  }

  /// c [m, n] (+)= a [m, k] b [k, n]
  static void product(int64_t m, int64_t n, int64_t k, bool add, const T* a, const T* b, float* c) {
    block_product(m, n, k, add, a, /*a_stride=*/k, b, c);
  }

 private:
  static constexpr bool kPairs = std::is_same_v<T, uint16_t>;
  static const AttentionKernels<T>& kernels() { return row_kernels<T>().attention; }
  template <typename Fill>
  static void through_pairs(int64_t rows, int64_t columns, T* to, const Fill& fill) {
    if constexpr (kPairs) {
      const at::Tensor plain = at::empty({rows * columns}, at::kBFloat16);
      fill(static_cast<T*>(plain.data_ptr()));
      kernels().pair_rows(static_cast<const T*>(plain.const_data_ptr()), rows, columns, to);
    } else {
      fill(to);
    }
  }
};

/// AMX tile registers (matmul/amx_tiles.h): consecutive strips and panels.
template <typename T>
struct TileLayout {
  using Value = T;
  using Packed = uint16_t;
  static bool serves(int64_t head_dim) {
    return head_dim % kTileDepth == 0 && tile_table() != nullptr;
  }
  static int64_t size(int64_t rows, int64_t columns) { return rows * columns * kTileParts<T>; }
  static void begin() { tile_table()->begin(); }
  static void end() { tile_table()->end(); }

  static void pack_left(const T* x, int64_t stride, int64_t valid, int64_t depth, uint16_t* to) {
    for (int64_t row = 0; row < kAttentionTile; row += kTileRows, to += size(kTileRows, depth)) {
      const int64_t rows = std::clamp<int64_t>(valid - row, 0, kTileRows);
      tile_kernels<T>().pack_strip(x + row * stride, stride, rows, depth, to);
    }
  }
  static void pack_left_transposed(const T* x, int64_t stride, int64_t valid, int64_t rows,
                                   uint16_t* to) {
    const at::Tensor plain = at::empty({rows * kAttentionTile * int64_t{sizeof(T)}}, at::kByte);
    auto* transposed = reinterpret_cast<T*>(plain.data_ptr<uint8_t>());
    row_kernels<T>().attention.pack_transposed(x, stride, valid, rows, transposed);
    for (int64_t row = 0; row < rows; row += kTileRows, to += size(kTileRows, kAttentionTile)) {
      tile_kernels<T>().pack_strip(transposed + row * kAttentionTile, kAttentionTile, kTileRows,
                                   kAttentionTile, to);
    }
  }
  static void pack_right(const T* x, int64_t stride, int64_t valid, int64_t columns, uint16_t* to) {
    const int64_t panel = size(kAttentionTile, kTileColumns),
                  packed = tile_steps(valid) * kTileStep<T>;
    for (int64_t c = 0; c < columns; c += kTileColumns, to += panel) {
      tile_kernels<T>().pack_panel(x + c, stride, kTileColumns, valid, to);
      std::fill(to + packed, to + panel, uint16_t{0});
    }
  }
  static void pack_right_transposed(const T* x, int64_t stride, int64_t valid, int64_t depth,
                                    uint16_t* to) {
    for (int64_t c = 0; c < kAttentionTile; c += kTileColumns, to += size(depth, kTileColumns)) {
      const int64_t columns = std::clamp<int64_t>(valid - c, 0, kTileColumns);
      tile_kernels<T>().pack_panel_transposed(x + c * stride, stride, columns, depth, to);
    }
  }
  static const uint16_t* left_square(const T* plain, uint16_t* room) {
    pack_left(plain, kAttentionTile, kAttentionTile, kAttentionTile, room);
    return room;
  }
  static const uint16_t* right_square(const T* plain, uint16_t* room) {
    pack_right(plain, kAttentionTile, kAttentionTile, kAttentionTile, room);
    return room;
  }

  static void product(int64_t m, int64_t n, int64_t k, bool add, const uint16_t* a,
                      const uint16_t* b, float* c) {
    for (int64_t row = 0; row < m; row += kTileRows) {
      for (int64_t column = 0; column < n; column += kTileColumns) {
        tile_kernels<T>().multiply(a + size(row, k), b + size(k, column), tile_steps(k), add,
                                   c + row * n + column, n, {});
      }
    }
  }
};

}  // namespace sftrun::kernels
