#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/dynamic_map.h"
#include "sftrun/kernels/quant.h"

/// Tensor operations without autograd: forward and backward as separate functions. CPU (fp32, bf16)
/// uses `cpu_kernels()`; CUDA uses the kernels of libsftrun_cuda (cuda_entry.h). Tensors are
/// contiguous unless stated otherwise. "Loose rows" below: the row stride may exceed the row
/// length. `spare`: unused columns to allocate after each row of the result.
namespace sftrun::kernels {

/// Cosines and sines of RoPE for a packed batch of T tokens.
struct RopeAngles {
  at::Tensor cos, sin;  ///< [T, rotary_dim / 2] fp32, at each token's position
};
struct Chunks;
/// Rows [first, end) of a batch.
struct RowSpan {
  int32_t first = 0, end = 0;
};
/// Metadata of one packed batch: T tokens in n documents. `ropes` and token keys belong to rows, in
/// any order and number: who computes with a part of the rows selects the same rows of them. Lengths
/// (`cu_seqlens`, `max_seqlen`, `chunks`) belong to whole documents, whose rows are consecutive: for
/// attention, mixers with a state, convolutions and what is divided by the length of a document; so do
/// the spans of `both_ways`.
struct BatchMetadata {
  std::vector<RopeAngles> ropes;    ///< one per RoPE variant of the model
  std::vector<int32_t> cu_seqlens;  ///< [n + 1], from 0 to T: first row of each document
  at::Tensor cu_seqlens_device;     ///< on the device, may end with empty documents (CUDA only)
  int32_t max_seqlen = 0;           ///< tokens of the longest document
  /// Spans whose rows see each other in both directions, where a layer's attention has it
  /// (`AttentionShape::both_ways`), such as the rows of one image. Ascending, disjoint, each within
  /// one document.
  std::vector<RowSpan> both_ways;
  at::Tensor key_ends_device;  ///< [T] int32 of `write_key_ends`, if there are spans (CUDA only)
  std::shared_ptr<const Chunks> chunks;  ///< for gated delta nets; else null
  std::vector<TokenKey> token_keys;      ///< [T], on CPU; read only by dropout and noise
  at::Tensor token_keys_device;          ///< [T, 2] int32, replaces `token_keys` (CUDA only)
  at::Tensor step_device;                ///< [1] int32, replaces `step` (CUDA only)
  uint64_t dropout_seed = 0;
  uint32_t step = 0;
  bool training = false;  ///< dropout is on
  /// For a CUDA graph: kernels are chosen by the numbers of documents and tokens only. Such a batch
  /// has no spans in `both_ways`.
  bool is_for_graph = false;
};

// ---- Matrix products.
/// e4m3 codes in the layout of the hardware's products: rows run along the summed dimension.
struct ScaledCodes {
  at::Tensor codes;   ///< [rows, depth] uint8
  at::Tensor scales;  ///< [1, rows] fp32: scale of each row
};
/// One term of a sum of products: x [T, K] times w^T with w [N, K] (`transposed`), or times w
/// [K, N]. Loose rows. Own CPU kernels dequantise a w part by part; else it is dequantised whole.
struct Product {
  at::Tensor x;
  Matrix w;
  bool transposed = false;
  RoundedRows rounded = {};  ///< x in e4m3 for an FP8 w, if already computed
  /// Transposed codes of w [K, N] and scales of 1, for `multiplies_transposed_codes`, if available.
  ScaledCodes transposed_codes = {};
  double scale = 1;  ///< of this term; other than 1 only on CUDA
};
/// residual [T, N] + bias [N] + sum of the products: [T, N]. Residual and bias may be undefined. On
/// CPU the sum is in fp32 and rounded once where own kernels are used; else terms, bias and
/// residual are added one by one.
at::Tensor matmul_sum(const std::vector<Product>& terms, const at::Tensor& residual = {},
                      const at::Tensor& bias = {});
/// out [N, K] fp32 += g^T x, g [T, N], x [T, K].
void add_matmul_tn_(at::Tensor& out, const at::Tensor& g, const at::Tensor& x);
/// Factors of an RMSNorm: rms_norm(x) = x * rstd [T] * (offset + weight [K]). Undefined: identity.
struct NormFactors {
  at::Tensor rstd, weight;
  double offset = 0;
};
inline constexpr int64_t kGradTileColumns = 64;
/// out += scale * g^T x for several adapters at once; g or x has lora_rank columns. With loose rows
/// on CUDA, where a wide side is read once for adapters whose columns of the other side follow one
/// another in one matrix, and where up to eight such products are one launch.
struct AdapterGrad {
  at::Tensor out, g, x;
  double scale = 1;
  NormFactors norm = {};  ///< applied to x; CUDA only
};
/// @param arrivals CUDA: int32 counters, 0 between calls, one for every kGradTileColumns wide
/// columns of each product. With them the tokens may be divided among blocks. If undefined or too
/// few, they are not. Calls that share counters must be on one stream.
void add_adapter_grads_(const std::vector<AdapterGrad>& grads, const at::Tensor& arrivals = {});
/// y += base + low F for low [T, lora_rank] and a factor F [lora_rank, N], such as B^T, with loose
/// rows. Rounded once where CUDA has a kernel for the shape.   @param base [T, N] or undefined
void add_low_rank_(at::Tensor y, const at::Tensor& low, const at::Tensor& factor,
                   const at::Tensor& base = {});

// ---- RMSNorm: x [T, H], weight [H].
/// y = x * rstd * (offset + weight), offset 0, or 1 for Gemma. Returns {y, rstd [T]}.
/// @param copy [T, H] or undefined: receives a copy of x, for in-place additions; CUDA only
/// @param spare CUDA only
std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                   double eps, double offset = 0,
                                                   const at::Tensor& copy = {}, int64_t spare = 0);
/// dx, plus residual if defined. On CUDA dy and residual may have loose rows.
/// @param spare CUDA only
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& residual, double offset = 0,
                             int64_t spare = 0);
/// Uninitialised [rows, columns] with `spare` unused columns after each row.
at::Tensor empty_rows(int64_t rows, int64_t columns, int64_t spare,
                      const at::TensorOptions& options);
/// Sums over rows of a b row_weights: [columns] fp32. Undefined weights: 1.
at::Tensor product_sums(const at::Tensor& a, const at::Tensor& b,
                        const at::Tensor& row_weights = {});
/// Gradient of the norm's weight, sum over tokens of dy x rstd: [H] fp32.
at::Tensor rms_norm_weight_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd);

// ---- Queries, keys and values for attention: RMSNorm of each head if it has a weight, then RoPE
// on the first rotary_dim channels of each head if angles are given.
struct HeadsInput {
  at::Tensor x;       ///< [T, heads * head_dim]
  at::Tensor weight;  ///< [head_dim] of the per-head norm, or undefined
  double eps = 0, offset = 0;
  bool rotates = true;  ///< false for values; CUDA only
};
struct HeadsOutput {
  at::Tensor y;     ///< [T, heads * head_dim]; x itself, rotated in place, without a norm
  at::Tensor rstd;  ///< [T * heads], or undefined
};
/// One to three tensors, on CUDA in one launch.   @param angles null: no RoPE
std::vector<HeadsOutput> heads_forward(const std::vector<HeadsInput>& inputs,
                                       const RopeAngles* angles, int64_t head_dim);
/// Gradients of the inputs.
/// @param grads of the outputs; overwritten, and on CUDA reused for the result
/// @param rstd of the outputs
/// @param into destination of the gradients instead of `grads`, with loose rows; CUDA only
std::vector<at::Tensor> heads_backward(const std::vector<HeadsInput>& inputs,
                                       const std::vector<at::Tensor>& grads,
                                       const std::vector<at::Tensor>& rstd,
                                       const RopeAngles* angles, int64_t head_dim,
                                       const std::vector<at::Tensor>& into = {});

/// h = activation(gate) * up.   @param spare CUDA only
at::Tensor gated_forward(Gating gating, const at::Tensor& gate, const at::Tensor& up,
                         int64_t spare = 0);
/// Overwrites gate and up with their gradients.
void gated_backward_(Gating gating, const at::Tensor& dh, at::Tensor& gate, at::Tensor& up);
/// The same; also overwrites dh with the output of `gated_forward`. CUDA only.
void gated_backward_and_forward_(Gating gating, at::Tensor& dh, at::Tensor& gate, at::Tensor& up);

/// Counter-based dropout of x [T, channels]. The backward pass is the same call on the gradient.
at::Tensor dropout(const at::Tensor& x, const BatchMetadata& batch, double probability,
                   uint32_t module);

/// Causal attention within each document.
/// q [T, heads * head_dim], k and v [T, kv_heads * head_dim].
enum class CudaAttention : uint8_t {
  /// cuDNN attention where it was measured to be the faster, else FlashAttention 2; FlashAttention
  /// in batches for CUDA graphs.
  kAuto,
  kFlash,    ///< FlashAttention 2
  kCudnn,    ///< cuDNN attention where supported, else FlashAttention 2
  kMeasure,  ///< the faster of the two, timed at the first batch of each shape
};
struct AttentionShape {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  double scale = 0;    ///< of scores, such as 1 / sqrt(head_dim)
  int64_t window = 0;  ///< sliding window: keys that a query sees, its own included; 0: unlimited
  double softcap = 0;  ///< scores become cap * tanh(score / cap); 0: off
  CudaAttention on_cuda = CudaAttention::kFlash;
  bool both_ways = false;  ///< rows of a span in `BatchMetadata::both_ways` see the whole span
};
/// Whether a layer's attention sees more of this batch than the keys before a query and its own.
inline bool sees_both_ways(const BatchMetadata& batch, const AttentionShape& shape) {
  return shape.both_ways && !batch.both_ways.empty();
}
/// Exclusive end of the keys that each row sees where attention sees spans both ways: the end of its
/// span, else the row after it. Ascending.
void write_key_ends(std::span<const RowSpan> both_ways, std::span<int32_t> ends);
/// The same, [rows] int32 on `device`; on CUDA `batch.key_ends_device`.
at::Tensor key_ends_of(const BatchMetadata& batch, int64_t rows, at::Device device);
/// Whether the CUDA work of attention depends only on the numbers of documents and tokens, not on
/// the positions of document boundaries, in a batch that asks for it (`is_for_graph`).
bool attention_is_static(at::ScalarType dtype, const AttentionShape& shape);
struct AttentionOutput {
  at::Tensor out;  ///< [T, heads * head_dim]
  /// log-sum-exp of the scores (and sinks): one tensor [heads, T]; one per document [1, heads, S]
  /// from LibTorch's CPU kernel; [documents, heads, S, 1] from cuDNN.
  std::vector<at::Tensor> lse;
  bool by_cudnn = false;  ///< the backward pass must use cuDNN, too
};
/// @param sinks [heads] or undefined: attention sinks, an extra score in each head's softmax that
/// adds to the denominator and has no value (arXiv:2309.17453, as in gpt-oss)
/// @pre q, k and v have the rows of the whole batch, T = cu_seqlens[n]: token t of a document sees the
/// keys of its tokens max(0, t - window + 1) … t; or, in a span that is seen both ways, to the end of
/// the span (create_masks_for_vision_model of transformers' Gemma 3). RoPE is applied already.
AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const BatchMetadata& batch, const AttentionShape& shape,
                                  const at::Tensor& sinks = {});
/// softmax(q k^T * scale) v of one token for each of n sequences, on a CPU (generation).
/// @param q [n, heads * head_dim]
/// @param keys, values [rows, kv_heads, capacity, head_dim], contiguous, rows >= n
/// @param lengths keys of each sequence, with the token's own; a window sees the last of them
/// @return [n, heads * head_dim]
at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                            std::span<const int64_t> lengths, const AttentionShape& shape,
                            const at::Tensor& sinks = {});
struct AttentionGrads {
  at::Tensor dq, dk, dv;
};
AttentionGrads attention_backward(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const AttentionOutput& saved,
                                  const BatchMetadata& batch, const AttentionShape& shape);
/// Gradient of the sinks: [heads] fp32. @param saved output of attention_forward
at::Tensor attention_sinks_grad(const at::Tensor& d_out, const AttentionOutput& saved,
                                const at::Tensor& sinks);

/// Multiplier of a loss's gradient.
struct GradScale {
  // NOLINTNEXTLINE(google-explicit-constructor): a number is a gradient scale
  GradScale(double constant, at::Tensor times = {}, at::Tensor of_rows = {})
      : value(constant), factor(std::move(times)), row_factors(std::move(of_rows)) {}
  double value;
  at::Tensor factor;  ///< [1] fp32 on the device, multiplies `value`; undefined: 1; CUDA only
  /// [N] fp32 on the device, multiplies the gradient of each row's loss; undefined: 1.
  at::Tensor row_factors;
};
/// Cross-entropy. Returns losses [N] fp32 and overwrites logits [N, vocab] with the gradient of
/// grad_scale * sum of (row_factor * loss). The losses returned are not multiplied. labels [N]
/// int32; rows with a negative label have loss and gradient 0. If softcap > 0, logits first become
/// cap * tanh(logit / cap).
at::Tensor token_losses_and_grad_(at::Tensor& logits, const at::Tensor& labels, double softcap,
                                  const GradScale& grad_scale);
at::Tensor token_losses(const at::Tensor& logits, const at::Tensor& labels, double softcap);

/// An open `UpdateGate` with factor 1: [sizeof(UpdateGate)] uint8 on `device`. Updates that are
/// launched before the host knows the step's loss and gradient norm read their factor from it.
at::Tensor open_gate(at::Device device);
/// Settings of `decide_update_`.
struct GateRule {
  int64_t num_losses = 0;  ///< per rank
  double num_terms = 1;    ///< over all ranks: mean loss = sum of losses / num_terms
  double max_norm = 0;     ///< gradients are clipped to this norm; 0: never
};
/// Sets the gradient clipping factor (torch.nn.utils.clip_grad_norm_), bit-identical on CPU and
/// CUDA. Closes the gate permanently if the loss or a norm is NaN or infinite.
/// @param numbers [ranks, columns] fp64: per rank the gradient norm, then its losses, then others
void decide_update_(at::Tensor& gate, const at::Tensor& numbers, const GateRule& rule);

/// AdamW on [begin, end) of flat fp32 buffers; also updates `compute` (may be the same tensor as
/// master).   @param gate of `open_gate`, read when the update is computed; undefined: none
void adamw_(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
            at::Tensor& compute, int64_t begin, int64_t end, const AdamWParams& params,
            const at::Tensor& gate = {});
/// Moments of 8-bit AdamW: value = map.values[code] * absmax of the block; exp_avg has a signed
/// map, exp_avg_sq an unsigned one. Each parameter starts a new block; its last block may be
/// shorter.
struct BlockwiseMoments {
  at::Tensor exp_avg, exp_avg_sq;                ///< [blocks, kStateBlock] uint8
  at::Tensor exp_avg_absmax, exp_avg_sq_absmax;  ///< [blocks] fp32
  at::Tensor block_begin;                  ///< [blocks] int64: first element in the flat buffers
  at::Tensor block_numel;                  ///< [blocks] int16
  DynamicMap exp_avg_map, exp_avg_sq_map;  ///< all on one device
};
/// AdamW on blocks [first_block, end_block) of flat fp32 buffers with bitsandbytes' numerics; also
/// updates `compute` (may be the same tensor as master). On CPU codes and absmax equal those of
/// bitsandbytes bit for bit, parameters up to the rounding of LibTorch's square root.
/// Memory-bound: 16 bytes per element, 18 with a bf16 copy.
/// @param gate as in `adamw_`
void adamw_8bit_(at::Tensor& master, const at::Tensor& grad, BlockwiseMoments& moments,
                 at::Tensor& compute, int64_t first_block, int64_t end_block,
                 const AdamW8bitParams& params, const at::Tensor& gate = {});
/// Sum of squares: fp64 scalar on the device of `flat`; the order of summation does not depend on
/// the number of threads.
at::Tensor sum_of_squares(const at::Tensor& flat);

}  // namespace sftrun::kernels
