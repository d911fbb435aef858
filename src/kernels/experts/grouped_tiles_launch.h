#pragma once

#include <cstdint>

#include "cuda/packed.h"
#include "cuda/types.h"

/// Grouped products on tensor cores, in bf16 or fp16. All rows are whole groups of eight elements and
/// aligned to 16 bytes; grouped_scalar_launch.h has what takes every shape.
namespace sftrun::kernels::cuda {

/// One product of the sum that is a block's result.
struct GroupedTerm {
  const void* x;  ///< [rows, inner]; null: there is no such term
  const void* w;  ///< [experts, columns, inner] (`transposed`) or [experts, inner, columns]
  int64_t inner;
};

/// y [rows, columns] = x_e w_e^T or x_e w_e, + the same of `beside`.
struct GroupedTiles {
  GroupedTerm product;  ///< `w` is null where the matrices are quantised
  GroupedTerm beside;   ///< an adapter
  const int32_t* ends;  ///< [experts]: end row of each expert
  int64_t rows, columns, experts;
  bool transposed;
  bool adds;  ///< y += instead of y =
  void* y;
};

/// Whether tensor cores serve: 16-bit elements, and all rows in groups of eight at aligned addresses.
bool tiles_serve(Type type, const GroupedTiles& tiles);

/// @pre tiles_serve; of the matrices also: rows are whole groups
void launch_grouped_tiles(Type type, const GroupedTiles& tiles, Stream stream);
void launch_grouped_tiles_4bit(Type type, const GroupedTiles& tiles, const FourBitView& w,
                               const FourBitTables& tables, Stream stream);
void launch_grouped_tiles_8bit(Type type, const GroupedTiles& tiles, const EightBitView& w,
                               Stream stream);

/// out [experts, n, k] fp32 += g_e^T x_e with g [rows, n] and x [rows, k].
struct GroupedGradients {
  const void* g;
  const void* x;
  const int32_t* ends;
  int64_t rows, n, k, experts;
  float* out;
};
bool gradient_tiles_serve(Type type, const GroupedGradients& gradients);
/// @pre gradient_tiles_serve
void launch_grouped_gradients(Type type, const GroupedGradients& gradients, Stream stream);

}  // namespace sftrun::kernels::cuda
