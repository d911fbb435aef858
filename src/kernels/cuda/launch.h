#pragma once

#include <cstdint>

#include "cuda/algorithms.h"
#include "cuda/packed.h"
#include "sftrun/kernels/cpu_table.h"
#include "sftrun/weights/ggml_type.h"

struct CUstream_st;

/// Launchers of the CUDA kernels, on raw device pointers and without LibTorch (nvcc needs half a
/// minute to parse ATen's headers). Contracts are those of `RowKernels`; empty input launches
/// nothing. Errors are left for cudaGetLastError().
namespace sftrun::kernels::cuda {

enum class Type { kFloat32, kBFloat16, kFloat16 };
using Stream = CUstream_st*;

/// y = rms_norm(x); `copy` receives x if it is not null. Contiguous, except that y has row stride
/// y_stride (in elements).
struct NormForward {
  const void *x, *weight;
  void *y, *copy;
  float* rstd;  ///< [rows]
  int64_t rows, hidden, y_stride;
  float eps, offset;
};
void launch_rms_norm_forward(Type type, const NormForward& norm, Stream stream);
/// dx, plus `residual` if it is not null. x is contiguous; the others have row strides.
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
  const void* x;     ///< input before norm and RoPE; row stride x_stride in elements
  const void* grad;  ///< backward: gradient of the forward result
  void* y;  ///< forward: the result, may be x if there is no norm; backward: the gradient of x, may
            ///< be grad
  const void* weight;  ///< [head_dim] of the per-head norm; null: none
  float* rstd;         ///< [tokens * heads]: written forward, read backward
  int64_t heads, x_stride, y_stride;
  float eps, offset;  ///< of the norm
  bool rotates;       ///< false for values
};
/// Up to three kinds of heads in one launch; kinds with `heads` 0 are skipped.
inline constexpr int kMostHeadKinds = 3;
struct HeadsProblem {
  HeadRows rows[kMostHeadKinds];
  const float* cos;  ///< [tokens, rotary_dim / 2]; null: no RoPE
  const float* sin;
  int64_t tokens, head_dim, rotary_dim;
};
void launch_heads_forward(Type type, const HeadsProblem& problem, Stream stream);
void launch_heads_backward(Type type, const HeadsProblem& problem, Stream stream);
/// Shape of gate, up (row stride `stride`) and h (row stride `h_stride`).
struct GatedShape {
  int64_t rows, columns, stride;
  int64_t h_stride;  ///< forward: of h; backward: `columns`, as dh is contiguous

  /// Whether all rows are contiguous.
  SFTRUN_HOST_DEVICE bool is_dense() const { return stride == columns && h_stride == columns; }
};
/// Content of dh after the backward pass: unchanged, or h.
enum class GatedLeaves { kGradient, kActivation };
void launch_gated_forward(Type type, Gating gating, const void* gate, const void* up, void* h,
                          const GatedShape& shape, Stream stream);
/// Overwrites gate and up with their gradients; dh with h if requested.
void launch_gated_backward(Type type, Gating gating, void* dh, void* gate, void* up,
                           const GatedShape& shape, GatedLeaves leaves, Stream stream);
/// @param step on the device, replaces `params.step`; the same below
void launch_dropout(Type type, const void* x, void* y, const TokenKey* tokens, const uint32_t* step,
                    int64_t rows, int64_t channels, const DropoutParams& params, Stream stream);
/// x [rows, channels] += noise, with a magnitude per document.
/// @param cu_seqlens [documents + 1]; the last one is `rows`
void launch_embedding_noise(Type type, void* x, const TokenKey* tokens, const uint32_t* step,
                            const int32_t* cu_seqlens, int64_t documents, int64_t rows,
                            int64_t channels, const NoiseParams& params, Stream stream);
/// Gradient of scale * factor * sum of (row_factors[row] * losses[row]).
struct LossGradient {
  bool is_wanted = false;
  float scale = 1;
  const float* factor = nullptr;       ///< on the device; null: 1
  const float* row_factors = nullptr;  ///< [rows], on the device; null: 1
};
/// Overwrites logits with the gradient if it is wanted. Rows with a negative label have loss and
/// gradient 0.
void launch_cross_entropy(Type type, void* logits, const int32_t* labels, float* losses,
                          int64_t rows, int64_t vocab, float softcap, const LossGradient& gradient,
                          Stream stream);
/// `compute` (of dtype `type`) may be null: then only the fp32 master is updated.
/// @param gate on the device; null: none
void launch_adamw(Type type, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
                  void* compute, int64_t n, const AdamWParams& params, Stream stream,
                  const UpdateGate* gate = nullptr);
/// Input of `decide_update_`.
struct StepNumbers {
  const double* values;  ///< [ranks, columns]: norm, losses, others
  int64_t ranks, columns, losses;
  double num_terms, max_norm;
};
void launch_decide_update(const StepNumbers& numbers, UpdateGate* gate, Stream stream);

/// Destination of dequantised values: row stride in elements.
struct ValueRows {
  void* y;
  int64_t stride;
};
/// Dequantises a 4-bit matrix, whose view has no tables yet.
void launch_dequantize_4bit(Type type, const FourBitView& matrix, const FourBitTables& tables,
                            const ValueRows& to, Stream stream);
/// Dequantises an 8-bit matrix.
void launch_dequantize_8bit(Type type, const EightBitView& matrix, const ValueRows& to,
                            Stream stream);
/// to [columns, rows] = transpose of from [rows, columns].
void launch_turn_codes(const uint8_t* from, uint8_t* to, int64_t rows, int64_t columns,
                       Stream stream);
/// Rounds x [rows, columns] * gains [columns] (null: 1) to codes [rows, columns] and scales
/// scales [rows]: `round_to_e4m3` of sftrun/kernels/quant.h.
void launch_round_to_e4m3(Type type, const void* x, const float* gains, uint8_t* codes,
                          float* scales, int64_t rows, int64_t columns, Stream stream);
/// Dequantises consecutive ggml blocks; each row is a whole number of blocks.
void launch_dequantize_ggml(Type type, weights::GgmlType ggml_type, const uint8_t* blocks,
                            int64_t rows, int64_t columns, const ValueRows& to, Stream stream);

/// y [tokens, rows of w] = x w^T for few tokens, x and y of dtype `type`. w's values are not
/// rounded to that dtype; sums are in fp32.
/// @pre w consists of whole groups of eight values; rows of x are aligned to 16 bytes
struct ThinProduct {
  Type type;
  const void* x;     ///< [tokens, columns of w]
  int64_t x_stride;  ///< row stride in elements
  int64_t tokens;
  void* y;
};
void launch_thin_product(const ThinProduct& product, const FourBitView& w,
                         const FourBitTables& tables, Stream stream);
void launch_thin_product(const ThinProduct& product, const EightBitView& w, Stream stream);
void launch_thin_product(const ThinProduct& product, weights::GgmlType ggml_type,
                         const uint8_t* blocks, int64_t rows, int64_t columns, Stream stream);

/// Consecutive blocks of moments, and the position of their values in the flat buffers.
struct StateBlocks {
  StateBlock first;
  const int64_t* begin;
  const int16_t* numel;
  int64_t count;
};
/// `param`, `grad` and `compute` are flat buffers.
void launch_adamw_8bit(Type type, float* param, const float* grad, const StateBlocks& blocks,
                       void* compute, const StateMap& exp_avg_map, const StateMap& exp_avg_sq_map,
                       const AdamW8bitParams& params, Stream stream,
                       const UpdateGate* gate = nullptr);

struct GroupedShape {
  int64_t rows, inner, columns, experts;
};
/// y [rows, columns] = x_e w_e^T with x [rows, inner] and w [experts, columns, inner]
/// (`transposed`), or x_e w_e with w [experts, inner, columns]; the rows of expert e end at
/// ends[e].
void launch_grouped_matmul(Type type, const void* x, const void* w, const int32_t* ends, void* y,
                           const GroupedShape& shape, bool transposed, Stream stream);
/// out [experts, inner, columns] fp32 += g_e^T x_e with g [rows, inner] and x [rows, columns].
void launch_grouped_matmul_tn(Type type, const void* g, const void* x, const int32_t* ends,
                              float* out, const GroupedShape& shape, Stream stream);

// ---- Mixtures of experts. A token's choices are its slots (token * top_k + k); slots sorted by
// expert are rows.
/// A router's choice for each token: the top_k of its softmax over all experts.
struct RouterChoice {
  int64_t tokens, experts, top_k;
  bool normalise;   ///< the weights of a token sum to 1
  int32_t* chosen;  ///< [tokens, top_k], largest first, ties to the lower expert index
  float* weights;   ///< [tokens, top_k]
  float* scaled;    ///< [tokens, top_k]: weights times factors[expert]; null: not wanted
};
/// Computes the choice.   @param logits [tokens, experts]   @param factors [experts] or null
/// @pre top_k <= experts
void launch_route_tokens(const RouterChoice& choice, const float* logits, const float* factors,
                         Stream stream);
struct RouterGradients {
  const float* logits;         ///< [tokens, experts]
  const float* factors;        ///< [experts] or null
  const float* d_scaled;       ///< [tokens, top_k]: gradient of the scaled weights
  const float* d_probability;  ///< [experts]: gradient of every token's probabilities; null: none
  float* d_logits;             ///< [tokens, experts]: result, times `scale`
  float scale;
};
/// @param choice as computed by `launch_route_tokens`
void launch_route_tokens_backward(const RouterChoice& choice, const RouterGradients& grads,
                                  Stream stream);
/// Slots sorted by expert, stably.
struct SortedRoutes {
  int64_t routes, num_experts;  ///< routes: tokens * top_k, below 2^31
  int32_t* ends;                ///< [num_experts]: end row of each expert
  int32_t* slots;               ///< [routes]: slot of each row
  int32_t* experts;             ///< [routes]: expert of each row
  int32_t* rows;                ///< [routes]: row of each slot
};
/// @param chosen [routes], each in [0, num_experts)
void launch_sort_routes(const SortedRoutes& sorted, const int32_t* chosen, Stream stream);

/// Rows of each token: rows[token * top_k + k].
struct TokenRows {
  const int32_t* rows;
  int64_t tokens, top_k, columns;
};
/// y [tokens * top_k, columns]: copies each token's row of x [tokens, columns] to its top_k rows.
void launch_spread_rows(Type type, const void* x, void* y, const TokenRows& of, Stream stream);
/// y [tokens, columns] = sum over a token's rows of weight * x, plus `beside` and `residual`;
/// summed in fp32 in slot order, rounded once.
struct RowSums {
  const void* x;         ///< [tokens * top_k, columns]
  const float* weights;  ///< [tokens, top_k]; null: 1
  const void* residual;  ///< [tokens, columns] or null
  const void* beside;    ///< [tokens, columns] or null
  const void* logits;    ///< [tokens]: `beside` is multiplied by their sigmoid; null: by 1
  void* y;
};
void launch_sum_rows(Type type, const RowSums& sums, const TokenRows& of, Stream stream);
/// y [rows, columns] += bias[expert of the row]; bias [experts, columns].
void launch_add_expert_bias(Type type, void* y, const void* bias, const int32_t* experts,
                            int64_t rows, int64_t columns, Stream stream);
/// out [experts, columns] fp32 += sum over an expert's rows of weight * x, in an order that depends
/// only on the number of rows.
struct ExpertSums {
  const void* x;         ///< [rows, columns]
  const int32_t* ends;   ///< [experts]
  const float* weights;  ///< [rows], indexed by slot; null: 1
  const int32_t* slots;  ///< [rows]
  float* out;
  int64_t experts, columns;
};
void launch_add_expert_sums(Type type, const ExpertSums& sums, Stream stream);
/// out [experts, rows, columns] fp32 += products, for experts that have tokens; for the others
/// `products` is undefined.   @pre rows * columns < 2^31
struct ExpertProducts {
  const void* products;               ///< [experts, rows, columns]
  int64_t row_stride, matrix_stride;  ///< of products, in elements
  const int32_t* ends;                ///< [experts]
  float* out;
  int64_t experts, rows, columns;
};
void launch_add_expert_products(Type type, const ExpertProducts& products, Stream stream);
/// Backward pass of a gated activation whose expert outputs are weighted:
///   d_weights[slot] = <h, dh> + <bias[expert], dy>
///   gate and up are overwritten with their gradients for weight * dh
struct WeightedGated {
  const void* dh;          ///< [rows, inner], without the weight
  void* gate_up;           ///< [rows, 2 * inner]: columns of gate, then of up
  const float* weights;    ///< indexed by slot
  const int32_t* slots;    ///< [rows]
  float* d_weights;        ///< indexed by slot
  void* weighted_h;        ///< [rows, inner]: weight * h; null: not wanted
  const void* bias;        ///< [experts, hidden] of down_proj; null: none
  const void* dy;          ///< [rows, hidden]; read with a bias
  const int32_t* experts;  ///< [rows]; read with a bias
  int64_t rows, inner, hidden;
};
void launch_weighted_gated_backward(Type type, Gating gating, const WeightedGated& gated,
                                    Stream stream);
/// Backward pass of y = sigmoid(logit) * answer: gradients of answer and logit.
struct GatedAnswer {
  const void* dy;      ///< [tokens, columns]
  const void* answer;  ///< [tokens, columns]
  const void* logits;  ///< [tokens]
  void* d_answer;      ///< [tokens, columns]
  void* d_logits;      ///< [tokens]
  int64_t tokens, columns;
};
void launch_gated_answer_backward(Type type, const GatedAnswer& gated, Stream stream);

/// Products g^T x in fp32 with one wide side: the columns of the thin side belong to up to
/// kMostGradParts matrices. With r counted from the first column of a part:
///   out[c * wide_step + r * rank_step] += scale * sum over tokens of wide[t, c] * thin[t, r]
/// If the wide side is rms_norm(x), `wide` is x and rstd and weight are the norm's.
inline constexpr int kMostGradParts = 4;  ///< linears with one input
inline constexpr int kGradColumns = 64;   ///< wide columns of a block
/// Columns of the thin side that a block can have.
constexpr int most_grad_ranks(Type type) {
  return type == Type::kFloat32 ? 16 : 64;
}
struct AdapterGradPart {
  float* out;
  int64_t rank, wide_step, rank_step;
  float scale;
};
struct AdapterGrad {
  const void* wide;    ///< [tokens, wide_columns], row stride wide_stride in elements
  const void* thin;    ///< [tokens, rank], row stride thin_stride in elements
  const float* rstd;   ///< [tokens] of the norm; null: no norm
  const void* weight;  ///< [wide_columns] of the norm, plus `offset`
  float offset;
  int64_t wide_stride, wide_columns, thin_stride;
  int64_t rank;  ///< of all parts
  int parts;
  AdapterGradPart part[kMostGradParts];
};
inline constexpr int kMostAdapterGrads = 8;  ///< per launch
struct AdapterGrads {
  AdapterGrad products[kMostAdapterGrads];
  int count;
  int64_t tokens;
  /// Tokens that a block sums up: a multiple of 64, or all. With more than one part of the tokens,
  /// the sizes of the two arrays are those of `work_of`, and `arrivals` holds zeros, which it holds
  /// again when the kernel ends.
  int64_t part_tokens;
  float* partial_sums;
  unsigned* arrivals;
};
struct AdapterGradWork {
  int64_t tiles;  ///< blocks for one part of the tokens
  int64_t sums;   ///< partial sums of all tiles and parts
};
AdapterGradWork work_of(Type type, const AdapterGrads& grads);
void launch_adapter_grads(Type type, const AdapterGrads& grads, Stream stream);

inline constexpr int64_t kMostLowRank = 64;  ///< of LowRankSum::rank
/// y += base + low F in bf16 or fp16, rounded once, for a factor F [rank, columns] of few rows.
struct LowRankSum {
  void* y;           ///< [rows, columns], row stride y_stride in elements
  const void* base;  ///< the same, row stride base_stride; null: zeros
  const void* low;   ///< [rows, rank], row stride low_stride
  /// [rank, columns], row stride factor_stride; if is_transposed [columns, rank]
  const void* factor;
  int64_t rows, columns, rank;  ///< rank and columns: multiples of 8
  int64_t y_stride, base_stride, low_stride, factor_stride;
  bool is_transposed;
};
/// @pre bf16 or fp16; all addresses and row strides are multiples of 16 bytes
void launch_low_rank_sum(Type type, const LowRankSum& sum, Stream stream);

/// Causal attention within packed documents, without sinks; see `AttentionShape` in ops.h. Rows of
/// q and out have heads * depth channels, those of k and v kv_heads * depth; depth <=
/// kMostAttentionDepth, tokens < 2^31. Documents may be empty. q, k and v have row strides.
struct AttentionProblem {
  const void* q;
  const void* k;
  const void* v;
  const int32_t* cu_seqlens;  ///< [documents + 1]
  int64_t tokens, documents, heads, kv_heads, depth;
  int64_t q_stride, k_stride, v_stride;  ///< row strides in elements
  int64_t window;                        ///< keys that a query sees, its own included; 0: unlimited
  float scale, softcap;
};
inline constexpr int64_t kMostAttentionDepth = 512;
/// @param lse [heads, tokens]: log-sum-exp of each query's scores
void launch_attention_forward(Type type, const AttentionProblem& problem, void* out, float* lse,
                              Stream stream);
struct AttentionGradient {
  const void* d_out;
  const void* out;
  const float* lse;
  float* delta;        ///< [heads, tokens] workspace
  int32_t* first_key;  ///< [tokens] workspace
  void* dq;
  void* dk;
  void* dv;
};
/// Without atomics: the order of summation depends only on the shapes.
void launch_attention_backward(Type type, const AttentionProblem& problem,
                               const AttentionGradient& gradient, Stream stream);

/// to[r * to_stride + c] = scale * from[r * columns + c]
struct MatrixPlacement {
  const void* from;
  void* to;
  int64_t rows, columns, to_stride;
  float scale;
};
/// @param placements [count] on the device; all matrices have the same dtype
void launch_copy_matrices(Type type, const MatrixPlacement* placements, int64_t count,
                          Stream stream);

/// Elements summed per block; there are ceil(n / kSumChunk) partial sums in fp64.
inline constexpr int64_t kSumChunk = 65536;
/// total [1] fp64 = sum of x^2, in an order that depends only on n.
void launch_sum_of_squares(const float* x, int64_t n, double* partial, double* total,
                           Stream stream);

}  // namespace sftrun::kernels::cuda
