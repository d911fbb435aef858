#pragma once

#include <cstdint>
#include <type_traits>

/// Products on Intel's tile registers (AMX, Intel SDM volume 1, chapter 18): one instruction adds
/// 16 x 32 times 32 x 16 values of bf16 to 16 x 16 sums in fp32. A value of fp32 is the sum of
/// three of bf16 exactly, 24 bits as three times 8, so that six of nine products give the product
/// of fp32 (arXiv:1904.06376); what the other three would add is below 2^-23 of each summand. That
/// is two and a half times as fast as AVX-512. T is float, or uint16_t holding bfloat16.
///
/// Tiles take numbers below 2^-126 for 0, and the parts of an infinity are not numbers.
namespace sftrun::kernels {

inline constexpr int64_t kTileRows = 32;     ///< of a strip, the left operand
inline constexpr int64_t kTileColumns = 32;  ///< of a panel, the right operand
inline constexpr int64_t kTileDepth = 32;    ///< of both operands' steps

/// How many values of bf16 stand for one of T.
template <typename T>
inline constexpr int64_t kTileParts = std::is_same_v<T, float> ? 3 : 1;

/// Elements of one step of a strip, or of a panel.
template <typename T>
inline constexpr int64_t kTileStep = kTileParts<T>* kTileRows* kTileDepth;

inline int64_t tile_steps(int64_t depth) {
  return (depth + kTileDepth - 1) / kTileDepth;
}

/// Rows that will be packed next, brought nearer meanwhile.
template <typename T>
struct ComingRows {
  const T* x = nullptr;
  int64_t stride = 0, rows = 0;
};

/// Operands that are packed begin on a cache line; what they have beside their valid rows, columns
/// and depth is zeros.
template <typename T>
struct TileKernels {
  /// x [rows, depth], rows `stride` apart, as [steps][parts][32 rows][32]; rows <= 32.
  void (*pack_strip)(const T* x, int64_t stride, int64_t rows, int64_t depth, uint16_t* strip);
  /// w [depth, columns], rows `stride` apart, as [steps][parts][16][32 columns][2]: pairs of rows
  /// interleaved, columns <= 32.
  void (*pack_panel)(const T* w, int64_t stride, int64_t columns, int64_t depth, uint16_t* panel);
  /// The same from w [columns, depth].
  void (*pack_panel_transposed)(const T* w, int64_t stride, int64_t columns, int64_t depth,
                                uint16_t* panel);
  /// sums [32, 32], rows `stride` apart, (+)= strip x panel. Adding `steps` at once or in stages
  /// gives the same bits.
  void (*multiply)(const uint16_t* strip, const uint16_t* panel, int64_t steps, bool add,
                   float* sums, int64_t stride, ComingRows<T> coming);
};

struct TileTable {
  TileKernels<float> f32;
  TileKernels<uint16_t> bf16;
  void (*begin)();  ///< before a thread's first `multiply`
  void (*end)();    ///< after its last
};

/// Null where the processor or the system has no tiles, or SFTRUN_ISA names a lesser instruction
/// set.
const TileTable* tile_table();

template <typename T>
const TileKernels<T>& tile_kernels() {
  if constexpr (std::is_same_v<T, float>)
    return tile_table()->f32;
  else
    return tile_table()->bf16;
}

}  // namespace sftrun::kernels
