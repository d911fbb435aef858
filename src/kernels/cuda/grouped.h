#pragma once

#include "algorithms.h"

/// Assignment of work to the blocks of a grouped product. Also compiled for the host, for tests.
namespace sftrun::kernels::cuda {

/// Side of the square of the result that a block computes.
inline constexpr int kGroupedTile = 64;

/// A matrix in memory, zero outside its bounds.
template <typename T>
struct MatrixView {
  const T* data;
  int64_t rows, columns, row_stride, column_stride;

  SFTRUN_HOST_DEVICE bool holds(int64_t row, int64_t column) const {
    return row < rows && column < columns;
  }
  SFTRUN_HOST_DEVICE T at(int64_t row, int64_t column) const {
    return holds(row, column) ? data[row * row_stride + column * column_stride]
                              : static_cast<T>(0.0F);
  }
  /// The submatrix that begins at (row, column).
  SFTRUN_HOST_DEVICE MatrixView from(int64_t row, int64_t column) const {
    return {data + row * row_stride + column * column_stride, rows - row, columns - column,
            row_stride, column_stride};
  }
};

/// Rows [begin, begin + rows) of one expert; rows is 0 if there is no such tile.
struct RowTile {
  int64_t expert, begin, rows;
};

/// Upper bound of the number of tiles for `rows` rows of `experts` experts.
SFTRUN_HOST_DEVICE int64_t max_row_tiles(int64_t rows, int64_t experts) {
  return rows / kGroupedTile + (rows < experts ? rows : experts);
}

/// @param ends [experts]: end row of each expert   @param index less than `max_row_tiles`
SFTRUN_HOST_DEVICE RowTile row_tile(const int32_t* ends, int64_t experts, int64_t index) {
  int64_t begin = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const int64_t end = ends[expert], tiles = (end - begin + kGroupedTile - 1) / kGroupedTile;
    if (index < tiles) {
      const int64_t first = begin + index * kGroupedTile, left = end - first;
      return {expert, first, left < kGroupedTile ? left : kGroupedTile};
    }
    index -= tiles;
    begin = end;
  }
  return {0, 0, 0};
}

/// x [rows, inner] times w_e^T (w [experts, columns, inner]) or w_e ([experts, inner, columns]).
template <typename T>
struct GroupedProduct {
  const T* x;
  const T* w;
  int64_t inner, columns;
  bool transposed;

  SFTRUN_HOST_DEVICE MatrixView<T> left(const RowTile& tile) const {
    return {x + tile.begin * inner, tile.rows, inner, inner, 1};
  }
  SFTRUN_HOST_DEVICE MatrixView<T> right(const RowTile& tile, int64_t first_column) const {
    const T* of_expert = w + tile.expert * inner * columns;
    const MatrixView<T> whole = transposed ? MatrixView<T>{of_expert, inner, columns, 1, inner}
                                           : MatrixView<T>{of_expert, inner, columns, columns, 1};
    return whole.from(0, first_column);
  }
};

/// g_e^T x_e for g [rows, n] and x [rows, k].
template <typename T>
struct GroupedGradient {
  const T* g;
  const T* x;
  int64_t n, k;

  SFTRUN_HOST_DEVICE MatrixView<T> left(int64_t begin, int64_t rows, int64_t first_row) const {
    return MatrixView<T>{g + begin * n, n, rows, 1, n}.from(first_row, 0);
  }
  SFTRUN_HOST_DEVICE MatrixView<T> right(int64_t begin, int64_t rows, int64_t first_column) const {
    return MatrixView<T>{x + begin * k, rows, k, k, 1}.from(0, first_column);
  }
};

}  // namespace sftrun::kernels::cuda
