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

/// y = rms_norm(x), and the same x once more in `copy`, if not null. All contiguous, but y's rows,
/// which are y_stride elements apart.
struct NormForward {
  const void *x, *weight;
  void *y, *copy;
  float* rstd;  ///< [rows]
  int64_t rows, hidden, y_stride;
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
/// Rows of gate and up, and forward those of h, may lie further apart than they are long.
struct GatedShape {
  int64_t rows, columns, stride;
  int64_t h_stride;  ///< of h; backward dh is dense: `columns`

  /// Whether all rows of each lie one behind another.
  SFTRUN_HOST_DEVICE bool is_dense() const { return stride == columns && h_stride == columns; }
};
/// What the backward pass leaves in dh's memory.
enum class GatedLeaves { kGradient, kActivation };
void launch_gated_forward(Type type, Gating gating, const void* gate, const void* up, void* h,
                          const GatedShape& shape, Stream stream);
/// Overwrites gate and up with their gradients, and dh with h where it is to be left.
void launch_gated_backward(Type type, Gating gating, void* dh, void* gate, void* up,
                           const GatedShape& shape, GatedLeaves leaves, Stream stream);
/// @param step on the device, in place of `params.step`; likewise below
void launch_dropout(Type type, const void* x, void* y, const TokenKey* tokens, const uint32_t* step,
                    int64_t rows, int64_t channels, const DropoutParams& params, Stream stream);
/// x [rows, channels] += noise, of which each document has its own magnitude.
/// @param cu_seqlens [documents + 1]: where documents begin, the last is `rows`
void launch_embedding_noise(Type type, void* x, const TokenKey* tokens, const uint32_t* step,
                            const int32_t* cu_seqlens, int64_t documents, int64_t rows,
                            int64_t channels, const NoiseParams& params, Stream stream);
/// Of scale * factor * the sum of losses.
struct LossGradient {
  bool is_wanted = false;
  float scale = 1;
  const float* factor = nullptr;  ///< on the device; null: 1
};
/// Overwrites logits with the gradient where it is wanted. A row with a negative label has neither
/// loss nor gradient.
void launch_cross_entropy(Type type, void* logits, const int32_t* labels, float* losses,
                          int64_t rows, int64_t vocab, float softcap, const LossGradient& gradient,
                          Stream stream);
/// `compute`, of type `type`, may be null: then only the fp32 master is updated.
/// @param gate on the device; null: none
void launch_adamw(Type type, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
                  void* compute, int64_t n, const AdamWParams& params, Stream stream,
                  const UpdateGate* gate = nullptr);
/// What a gate is decided by: see `decide_update_`.
struct StepNumbers {
  const double* values;  ///< [ranks, columns]: a norm, the losses, more
  int64_t ranks, columns, losses;
  double label_tokens, max_norm;
};
void launch_decide_update(const StepNumbers& numbers, UpdateGate* gate, Stream stream);

/// Where a matrix' values go: its rows, `stride` elements apart.
struct ValueRows {
  void* y;
  int64_t stride;
};
/// Of a matrix in 4 bits, whose view has no tables yet.
void launch_dequantize_4bit(Type type, const FourBitView& matrix, const FourBitTables& tables,
                            const ValueRows& to, Stream stream);
/// Of a matrix in 8 bits.
void launch_dequantize_8bit(Type type, const EightBitView& matrix, const ValueRows& to,
                            Stream stream);
/// to [columns, rows] = from [rows, columns] with rows and columns exchanged.
void launch_turn_codes(const uint8_t* from, uint8_t* to, int64_t rows, int64_t columns,
                       Stream stream);
/// codes [rows, columns] and factors [rows] of x [rows, columns] times `gains` [columns], if not
/// null: `round_to_e4m3` of sftrun/kernels/quant.h.
void launch_round_to_e4m3(Type type, const void* x, const float* gains, uint8_t* codes,
                          float* factors, int64_t rows, int64_t columns, Stream stream);
/// Of consecutive blocks, of which a row has a whole number.
void launch_dequantize_ggml(Type type, weights::GgmlType ggml_type, const uint8_t* blocks,
                            int64_t rows, int64_t columns, const ValueRows& to, Stream stream);

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
                       const AdamW8bitParams& params, Stream stream,
                       const UpdateGate* gate = nullptr);

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

// ---- Mixtures of experts. A token's choices are its slots (token * top_k + place among its
// choices); sorted by expert they are rows.
/// What a router chooses for each token: the top_k largest of its softmax over all experts.
struct RouterChoice {
  int64_t tokens, experts, top_k;
  bool normalise;   ///< the weights of a token add up to 1
  int32_t* chosen;  ///< [tokens, top_k], the largest first, of equal ones the lower expert
  float* weights;   ///< [tokens, top_k]
  float* scaled;    ///< [tokens, top_k]: weights times their expert's factor; null: none
};
/// Writes the choice.   @param logits [tokens, experts]   @param factors [experts] or null
/// @pre top_k <= experts
void launch_route_tokens(const RouterChoice& choice, const float* logits, const float* factors,
                         Stream stream);
struct RouterGradients {
  const float* logits;         ///< [tokens, experts]
  const float* factors;        ///< [experts] or null
  const float* d_scaled;       ///< [tokens, top_k]: of the weights times their factors
  const float* d_probability;  ///< [experts]: of every token's probabilities; null: none
  float* d_logits;             ///< [tokens, experts]: the result, times `scale`
  float scale;
};
/// Reads the choice.
void launch_route_tokens_backward(const RouterChoice& choice, const RouterGradients& grads,
                                  Stream stream);
/// Slots sorted by expert, those of one expert in their order.
struct SortedRoutes {
  int64_t routes, num_experts;  ///< routes: tokens * top_k, below 2^31
  int32_t* ends;                ///< [num_experts]: where each expert's rows end
  int32_t* slots;               ///< [routes]: of each row
  int32_t* experts;             ///< [routes]: of each row
  int32_t* rows;                ///< [routes]: of each slot
};
/// @param chosen [routes], each in [0, num_experts)
void launch_sort_routes(const SortedRoutes& sorted, const int32_t* chosen, Stream stream);

/// Which rows are a token's: rows[token * top_k + place].
struct TokenRows {
  const int32_t* rows;
  int64_t tokens, top_k, columns;
};
/// y [tokens * top_k, columns] = of each token its row of x [tokens, columns], in each of its rows.
void launch_spread_rows(Type type, const void* x, void* y, const TokenRows& of, Stream stream);
/// y [tokens, columns] = sum over a token's rows of weight * x, plus what is beside; summed in fp32
/// in the order of its slots and rounded once.
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
/// on the number of rows alone.
struct ExpertSums {
  const void* x;         ///< [rows, columns]
  const int32_t* ends;   ///< [experts]
  const float* weights;  ///< [rows], of each slot; null: 1
  const int32_t* slots;  ///< [rows]
  float* out;
  int64_t experts, columns;
};
void launch_add_expert_sums(Type type, const ExpertSums& sums, Stream stream);
/// out [experts, rows, columns] fp32 += products, where an expert has rows of tokens; elsewhere
/// products holds anything.   @pre rows * columns < 2^31
struct ExpertProducts {
  const void* products;               ///< of each expert [rows, columns]
  int64_t row_stride, matrix_stride;  ///< of products, in elements
  const int32_t* ends;                ///< [experts]
  float* out;
  int64_t experts, rows, columns;
};
void launch_add_expert_products(Type type, const ExpertProducts& products, Stream stream);
/// Backward through a gated activation, of which each row's answer has a weight:
///   d_weights[slot] = <h, dh> + <bias[expert], dy>,   gate and up = their gradients for weight *
///   dh
struct WeightedGated {
  const void* dh;          ///< [rows, inner], of the row's answer without its weight
  void* gate_up;           ///< [rows, 2 * inner]: gate's columns, then up's
  const float* weights;    ///< [rows], of each slot
  const int32_t* slots;    ///< [rows]
  float* d_weights;        ///< [rows], of each slot
  void* weighted_h;        ///< [rows, inner]: weight * h; null: not wanted
  const void* bias;        ///< [experts, hidden] of what follows; null: none
  const void* dy;          ///< [rows, hidden]; read with a bias
  const int32_t* experts;  ///< [rows]; read with a bias
  int64_t rows, inner, hidden;
};
void launch_weighted_gated_backward(Type type, Gating gating, const WeightedGated& gated,
                                    Stream stream);
/// Backward of y = sigmoid(logit) * answer for each token: d_answer, and the gradient of the logit.
struct GatedAnswer {
  const void* dy;      ///< [tokens, columns]
  const void* answer;  ///< [tokens, columns]
  const void* logits;  ///< [tokens]
  void* d_answer;      ///< [tokens, columns]
  void* d_logits;      ///< [tokens]
  int64_t tokens, columns;
};
void launch_gated_answer_backward(Type type, const GatedAnswer& gated, Stream stream);

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

/// Causal attention within packed documents, without sinks: `AttentionShape` of ops.h says more.
/// Rows of q and out have heads * depth channels, those of k and v kv_heads * depth, depth at most
/// kMostAttentionDepth. Documents may be empty; tokens are fewer than 2^31. Rows of q, k and v may
/// lie further apart than they are long.
struct AttentionProblem {
  const void* q;
  const void* k;
  const void* v;
  const int32_t* cu_seqlens;  ///< [documents + 1]: where each document begins, and the last ends
  int64_t tokens, documents, heads, kv_heads, depth;
  int64_t q_stride, k_stride, v_stride;  ///< from a token to the next, in elements
  int64_t window;  ///< keys that a query sees, its own included; 0: all before it
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
  float* delta;        ///< [heads, tokens] to work in
  int32_t* first_key;  ///< [tokens] to work in
  void* dq;
  void* dk;
  void* dv;
};
/// Without atomics: the sums are in an order that depends on the shapes alone.
void launch_attention_backward(Type type, const AttentionProblem& problem,
                               const AttentionGradient& gradient, Stream stream);

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
