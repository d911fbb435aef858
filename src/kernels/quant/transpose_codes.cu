#include "cuda/device.cuh"
#include "quant/dequantize_launch.h"

// Transposes a byte matrix through square tiles in shared memory. Reads and writes are 16 bytes
// wide if rows and columns are multiples of 16.
namespace sftrun::kernels::cuda {
namespace {

constexpr int kSide = 64, kWide = 16;
constexpr int kPieces = kSide / kWide;  // per row of a tile
// The row stride is padded to avoid bank conflicts.
constexpr int kLead = kSide + 4;
static_assert(kThreads == kSide * kPieces, "each thread moves one piece");

struct Piece {
  int row, column;  ///< in the tile
};
__device__ __forceinline__ Piece own_piece() {
  const int thread = static_cast<int>(threadIdx.x);
  return {thread / kPieces, thread % kPieces * kWide};
}

/// A piece begins inside the matrix or is skipped; without kWholePieces it may end outside.
template <bool kWholePieces>
__device__ __forceinline__ void load_piece(const uint8_t* from, int64_t left, uint8_t* to) {
  if constexpr (kWholePieces) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    auto* place = reinterpret_cast<uint32_t*>(to);
    place[0] = words.x, place[1] = words.y, place[2] = words.z, place[3] = words.w;
  } else {
    for (int i = 0; i < kWide && i < left; ++i) to[i] = from[i];
  }
}
/// Writes part of a column of the tile, starting at its row `from`.
template <bool kWholePieces>
__device__ __forceinline__ void store_piece(const uint8_t* from, int64_t left, uint8_t* to) {
  if constexpr (kWholePieces) {
    const auto word = [&](int first) {
      uint32_t bytes = 0;
      for (int i = 0; i < 4; ++i)
        bytes |= static_cast<uint32_t>(from[(first + i) * kLead]) << (8 * i);
      return bytes;
    };
    *reinterpret_cast<uint4*>(to) = make_uint4(word(0), word(4), word(8), word(12));
  } else {
    for (int i = 0; i < kWide && i < left; ++i) to[i] = from[i * kLead];
  }
}

/// to [columns, rows] = transpose of from [rows, columns].
template <bool kWholePieces>
__global__ void __launch_bounds__(kThreads)
    transpose_codes(const uint8_t* from, uint8_t* to, int64_t rows, int64_t columns) {
  __shared__ __align__(16) uint8_t tile[kSide * kLead];
  const Piece own = own_piece();
  const int64_t tiles = (columns + kSide - 1) / kSide, first_row = blockIdx.x / tiles * kSide,
                first_column = blockIdx.x % tiles * kSide;
  const int64_t row = first_row + own.row, column = first_column + own.column;
  if (row < rows && column < columns) {
    load_piece<kWholePieces>(from + row * columns + column, columns - column,
                             tile + own.row * kLead + own.column);
  }
  __syncthreads();
  const int64_t turned_row = first_column + own.row, turned_column = first_row + own.column;
  if (turned_row >= columns || turned_column >= rows) return;
  store_piece<kWholePieces>(tile + own.column * kLead + own.row, rows - turned_column,
                            to + turned_row * rows + turned_column);
}

}  // namespace

void launch_transpose_codes(const uint8_t* from, uint8_t* to, int64_t rows, int64_t columns,
                            Stream stream) {
  if (rows * columns == 0) return;
  const auto tiles = ((rows + kSide - 1) / kSide) * ((columns + kSide - 1) / kSide);
  const bool has_whole_pieces =
      rows % kWide == 0 && columns % kWide == 0 && in_eights(0, {from, to});
  launch(has_whole_pieces ? transpose_codes<true> : transpose_codes<false>,
         static_cast<unsigned>(tiles), kThreads, stream, from, to, rows, columns);
}

const Provided kLaunchers[] = {{"launch_transpose_codes", launch_transpose_codes}};

}  // namespace sftrun::kernels::cuda
