#pragma once

#include <cstdint>

#include "cuda/algorithms.h"
#include "cuda/packed.h"
#include "sftrun/kernels/cpu_table.h"
#include "sftrun/weights/ggml_type.h"

struct CUstream_st;

/// Launches of the CUDA kernels, on raw device pointers and without LibTorch: nvcc takes half a
/// minute to read ATen's headers. Contracts are those of `RowKernels`; nothing is launched for
/// empty input. Errors are left for cudaGetLastError().
namespace sftrun::kernels::cuda {

enum class Type { kFloat32, kBFloat16, kFloat16 };
using Stream = CUstream_st*;

/// y = rms_norm(x), and the same x once more in `copy`, if not null. All contiguous.
struct NormForward {
  const void *x, *weight;
  void *y, *copy;
  float* rstd;  ///< [rows]
  int64_t rows, hidden;
  float eps, offset;
};
void launch_rms_norm_forward(Type type, const NormForward& norm, Stream stream);
/// dx, plus `residual` if it is not null. x is contiguous; other rows are their strides apart.
struct NormBackward {
  const void *dy, *x, *weight;
  const float* rstd;  ///< [rows]
  const void* residual;
  void* dx;
  int64_t rows, hidden, dy_stride, residual_stride, dx_stride;
  float offset;
};
void launch_rms_norm_backward(Type type, const NormBackward& norm, Stream stream);
/// Heads of queries, keys or values, [tokens, heads, head_dim].
struct HeadRows {
  const void* x;     ///< before norm and rotation, tokens x_stride elements apart
  const void* grad;  ///< backward: of what attention read
  void* y;  ///< forward what attention reads, without a norm it may be x; backward the gradient
            ///< of x, which may be grad
  const void* weight;  ///< [head_dim] of the norm of each head; null: none
  float* rstd;         ///< [tokens * heads]: written forward, read backward
  int64_t heads, x_stride, y_stride;
  float eps, offset;  ///< of the norm
  bool rotates;       ///< values do not
};
/// Up to three kinds of heads in one launch; a kind has none where `heads` is 0.
inline constexpr int kMostHeadKinds = 3;
struct HeadsProblem {
  HeadRows rows[kMostHeadKinds];
  const float* cos;  ///< [tokens, rotary_dim / 2]; null: nothing is rotated
  const float* sin;
  int64_t tokens, head_dim, rotary_dim;
};
void launch_heads_forward(Type type, const HeadsProblem& problem, Stream stream);
void launch_heads_backward(Type type, const HeadsProblem& problem, Stream stream);
/// Rows of gate and up, which may lie further apart than they are long; those of h and dh do not.
struct GatedShape {
  int64_t rows, columns, stride;
};
/// What the backward pass leaves in dh's memory.
enum class GatedLeaves { kGradient, kActivation };
void launch_gated_forward(Type type, Gating gating, const void* gate, const void* up, void* h,
                          const GatedShape& shape, Stream stream);
/// Overwrites gate and up with their gradients, and dh with h where it is to be left.
void launch_gated_backward(Type type, Gating gating, void* dh, void* gate, void* up,
                           const GatedShape& shape, GatedLeaves leaves, Stream stream);
void launch_dropout(Type type, const void* x, void* y, const TokenKey* tokens, int64_t rows,
                    int64_t channels, const DropoutParams& params, Stream stream);
/// Overwrites logits with the gradient if `with_gradient`.
void launch_cross_entropy(Type type, void* logits, const int32_t* labels, float* losses,
                          int64_t rows, int64_t vocab, float softcap, float grad_scale,
                          bool with_gradient, Stream stream);
/// `compute`, of type `type`, may be null: then only the fp32 master is updated.
void launch_adamw(Type type, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
                  void* compute, int64_t n, const AdamWParams& params, Stream stream);

/// y [rows, columns] = the values of a matrix in 4 bits, whose view has no tables yet.
void launch_dequantize_4bit(Type type, const FourBitView& matrix, const FourBitTables& tables,
                            void* y, Stream stream);
/// y [rows, columns] = the values of a matrix in 8 bits.
void launch_dequantize_8bit(Type type, const EightBitView& matrix, void* y, Stream stream);
/// codes [rows, columns] and factors [rows] of x [rows, columns] times `gains` [columns], if not
/// null: `round_to_e4m3` of sftrun/kernels/quant.h.
void launch_round_to_e4m3(Type type, const void* x, const float* gains, uint8_t* codes,
                          float* factors, int64_t rows, int64_t columns, Stream stream);
/// y [n] = the numbers of consecutive blocks; n is a multiple of a block's.
void launch_dequantize_ggml(Type type, weights::GgmlType ggml_type, const uint8_t* blocks, void* y,
                            int64_t n, Stream stream);

/// y [tokens, rows of w] = x w^T of few tokens, both of type `type`; sums in fp32 of w's values
/// before they are rounded to that type.
/// @pre the matrix' groups are whole; x's tokens begin at multiples of 16 bytes
struct ThinProduct {
  Type type;
  const void* x;     ///< [tokens, columns of w]
  int64_t x_stride;  ///< from a token to the next, in elements
  int64_t tokens;
  void* y;
};
void launch_thin_product(const ThinProduct& product, const FourBitView& w,
                         const FourBitTables& tables, Stream stream);
void launch_thin_product(const ThinProduct& product, const EightBitView& w, Stream stream);
void launch_thin_product(const ThinProduct& product, weights::GgmlType ggml_type,
                         const uint8_t* blocks, int64_t rows, int64_t columns, Stream stream);

/// Blocks of moments one after the other, and where their values lie in the flat buffers.
struct StateBlocks {
  StateBlock first;
  const int64_t* begin;
  const int16_t* numel;
  int64_t count;
};
/// `param`, `grad` and `compute` are the flat buffers.
void launch_adamw_8bit(Type type, float* param, const float* grad, const StateBlocks& blocks,
                       void* compute, const StateMap& exp_avg_map, const StateMap& exp_avg_sq_map,
                       const AdamW8bitParams& params, Stream stream);

struct GroupedShape {
  int64_t rows, inner, columns, experts;
};
/// y [rows, columns] = x_e w_e^T of x [rows, inner] and w [experts, columns, inner] (`transposed`),
/// or x_e w_e of w [experts, inner, columns]; expert e's rows end at ends[e].
void launch_grouped_matmul(Type type, const void* x, const void* w, const int32_t* ends, void* y,
                           const GroupedShape& shape, bool transposed, Stream stream);
/// out [experts, inner, columns] fp32 += g_e^T x_e of g [rows, inner] and x [rows, columns].
void launch_grouped_matmul_tn(Type type, const void* g, const void* x, const int32_t* ends,
                              float* out, const GroupedShape& shape, Stream stream);

/// One product g^T x in fp32 of which one side is wide and the other has a rank's columns:
/// out[c * wide_step + r * rank_step] += scale * sum over tokens of wide[t, c] * thin[t, r].
/// Where the wide side is rms_norm(x), x itself is given, with what the norm multiplies it by.
struct AdapterGrad {
  const void* wide;    ///< [tokens, wide_columns], rows wide_stride elements apart
  const void* thin;    ///< [tokens, rank], rows thin_stride elements apart
  const float* rstd;   ///< [tokens]: the norm's factor of each token; null: no norm
  const void* weight;  ///< [wide_columns]: the norm's, to which `offset` is added
  float offset;
  int64_t wide_stride, wide_columns, thin_stride, rank;
  float* out;
  int64_t wide_step, rank_step;
  float scale;
};
inline constexpr int kMostAdapterGrads = 8;  ///< of a launch: four linears, A and B of each
struct AdapterGrads {
  AdapterGrad products[kMostAdapterGrads];
  int count;
  int64_t tokens;
};
void launch_adapter_grads(Type type, const AdapterGrads& grads, Stream stream);

/// to[r * to_stride + c] = scale * from[r * columns + c]
struct MatrixPlacement {
  const void* from;
  void* to;
  int64_t rows, columns, to_stride;
  float scale;
};
/// @param placements [count] on the device; matrices of one type
void launch_copy_matrices(Type type, const MatrixPlacement* placements, int64_t count,
                          Stream stream);

/// Elements that one block sums; the partial sums are [ceil(n / this)] fp64.
inline constexpr int64_t kSumChunk = 65536;
/// total [1] fp64 = sum of x^2, in an order that depends on n alone.
void launch_sum_of_squares(const float* x, int64_t n, double* partial, double* total,
                           Stream stream);

}  // namespace sftrun::kernels::cuda
