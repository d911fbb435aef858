#pragma once

#include <cstdint>
#include <type_traits>

/// Matrix products on Intel's AMX tile registers (Intel SDM volume 1, chapter 18): one instruction
/// adds the product of 16 x 32 and 32 x 16 bf16 values to 16 x 16 fp32 accumulators. An fp32 value
/// is exactly the sum of three bf16 values (24 bits as three times 8), so six of the nine partial
/// products give the fp32 product (arXiv:1904.06376); the other three are below 2^-23 of each term.
/// This is two and a half times as fast as AVX-512. T is float, or uint16_t that holds bfloat16.
///
/// AMX treats subnormal values as 0; an infinite fp32 value becomes NaN when it is split.
namespace sftrun::kernels {

inline constexpr int64_t kTileRows = 32;     ///< of a strip (left operand)
inline constexpr int64_t kTileColumns = 32;  ///< of a panel (right operand)
inline constexpr int64_t kTileDepth = 32;    ///< depth of a step of both operands

/// Number of bf16 values per value of T.
template <typename T>
inline constexpr int64_t kTileParts = std::is_same_v<T, float> ? 3 : 1;

/// Number of elements in one step of a strip or panel.
template <typename T>
inline constexpr int64_t kTileStep = kTileParts<T>* kTileRows* kTileDepth;

inline int64_t tile_steps(int64_t depth) {
  return (depth + kTileDepth - 1) / kTileDepth;
}

/// Rows that are packed next; `multiply` prefetches them.
template <typename T>
struct ComingRows {
  const T* x = nullptr;
  int64_t stride = 0, rows = 0;
};

/// Packed operands are aligned to cache lines and zero-padded in rows, columns and depth.
template <typename T>
struct TileKernels {
  /// x [rows, depth], row stride `stride` -> [steps][parts][32 rows][32]; rows <= 32.
  void (*pack_strip)(const T* x, int64_t stride, int64_t rows, int64_t depth, uint16_t* strip);
  /// w [depth, columns], row stride `stride` -> [steps][parts][16][32 columns][2], rows interleaved
  /// in pairs (VNNI); columns <= 32.
  void (*pack_panel)(const T* w, int64_t stride, int64_t columns, int64_t depth, uint16_t* panel);
  /// The same from w [columns, depth].
  void (*pack_panel_transposed)(const T* w, int64_t stride, int64_t columns, int64_t depth,
                                uint16_t* panel);
  /// sums [32, 32], row stride `stride`, (+)= strip x panel. Adding `steps` at once or in stages
  /// gives bit-identical results.
  void (*multiply)(const uint16_t* strip, const uint16_t* panel, int64_t steps, bool add,
                   float* sums, int64_t stride, ComingRows<T> coming);
  /// The same for the first 16 columns of the panel.
  void (*multiply_few)(const uint16_t* strip, const uint16_t* panel, int64_t steps, bool add,
                       float* sums, int64_t stride, ComingRows<T> coming);
  /// out [columns, rows], row stride `stride`, from sums [32, 32]; rows, columns <= 32.
  void (*store_turned)(const float* sums, int64_t rows, int64_t columns, T* out, int64_t stride);
};

struct TileTable {
  TileKernels<float> f32;
  TileKernels<uint16_t> bf16;
  void (*begin)();  ///< before a thread's first `multiply`
  void (*end)();    ///< after its last
};

/// Null if the processor or the operating system does not support AMX, or SFTRUN_ISA is set.
const TileTable* tile_table();

template <typename T>
const TileKernels<T>& tile_kernels() {
  if constexpr (std::is_same_v<T, float>)
    return tile_table()->f32;
  else
    return tile_table()->bf16;
}

}  // namespace sftrun::kernels
