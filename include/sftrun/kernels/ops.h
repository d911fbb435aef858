#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/dynamic_map.h"
#include "sftrun/kernels/quant.h"

/// Operations on tensors, without autograd: forward and backward side by side. Each runs on CPU
/// (fp32, bf16) through `cpu_kernels()` and on CUDA through the kernels that libsftrun_cuda
/// registers. Tensors are contiguous unless said otherwise.
namespace sftrun::kernels {

/// What one packed batch looks like to the operations. T tokens in n documents.
struct RopeAngles {
  at::Tensor cos, sin;  ///< [T, rotary_dim / 2] fp32, of each token's position
};
struct Chunks;
struct LayerExchange;
struct BatchContext {
  std::vector<RopeAngles> ropes;    ///< of each way to turn that the model has
  std::vector<int32_t> cu_seqlens;  ///< [n + 1]
  at::Tensor cu_seqlens_device;     ///< the same on the device (CUDA only)
  int32_t max_seqlen = 0;
  std::shared_ptr<const Chunks> chunks;  ///< where delta nets read the batch; else null
  std::vector<TokenKey> token_keys;      ///< [T], on a CPU; empty when nothing is random
  at::Tensor token_keys_device;          ///< [T, 2] int32, instead of them (CUDA only)
  at::Tensor step_device;                ///< [1] int32, instead of `step` (CUDA only)
  uint64_t dropout_seed = 0;
  uint32_t step = 0;
  bool training = false;                    ///< dropout is on
  std::shared_ptr<LayerExchange> exchange;  ///< null where layers have nothing of one another
};

// ---- Products.
/// Codes in e4m3 as the hardware's products read them: rows of what is summed over.
struct ScaledCodes {
  at::Tensor codes;    ///< [rows, depth] uint8
  at::Tensor factors;  ///< [1, rows] fp32
};
/// One summand: x [T, K] times w^T, w [N, K] (`transposed`), or times w [K, N]. Rows may lie
/// further apart than they are long. A w in 4 bits is unpacked part by part where it is used.
struct Product {
  at::Tensor x;
  Matrix w;
  bool transposed = false;
  RoundedRows rounded = {};  ///< x in e4m3, for a w in FP8, where the caller has it already
  /// w's codes [K, N] and factors of 1, for `multiplies_turned_codes`, likewise.
  ScaledCodes turned = {};
  double scale = 1;  ///< of this summand; other than 1 on CUDA alone
};
/// residual [T, N] + bias [N] + the products: [T, N]. Residual and bias may be undefined. On CPU
/// summed in fp32 and rounded once where own kernels serve, else in the order given.
at::Tensor matmul_sum(const std::vector<Product>& terms, const at::Tensor& residual = {},
                      const at::Tensor& bias = {});
at::Tensor matmul_nt(const at::Tensor& x, const Matrix& w);  ///< x [T, K], w [N, K] -> x w^T [T, N]
/// out [N, K] fp32 += g^T x, g [T, N], x [T, K].
void add_matmul_tn_(at::Tensor& out, const at::Tensor& g, const at::Tensor& x);
/// What makes rms_norm(x) of x: times rstd [T] and offset + weight [K]. Undefined: nothing.
struct NormFactors {
  at::Tensor rstd, weight;
  double offset = 0;
};
/// The same of some products, each times `scale`, of which g or x has a rank's columns. On CUDA in
/// one launch for every four linears; rows may lie further apart than they are long.
struct AdapterGrad {
  at::Tensor out, g, x;
  double scale = 1;
  NormFactors norm = {};  ///< of x; on CUDA alone
};
void add_adapter_grads_(const std::vector<AdapterGrad>& grads);

// ---- RMSNorm: x [T, H], weight [H].
/// Times offset + weight (0, or Gemma's 1). Returns {y, rstd [T]}.
/// @param copy [T, H] or undefined: becomes x, for what is added to it in place; on CUDA alone
/// @param spare columns of room behind each row of y; on CUDA alone
std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                   double eps, double offset = 0,
                                                   const at::Tensor& copy = {}, int64_t spare = 0);
/// dx, plus residual if defined. On CUDA the rows of dy and residual may lie further apart than
/// they are long.
/// @param spare columns of room behind each row of dx; on CUDA alone
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& residual, double offset = 0,
                             int64_t spare = 0);
/// Memory for [rows, columns], with room for `spare` more behind each row.
at::Tensor empty_rows(int64_t rows, int64_t columns, int64_t spare,
                      const at::TensorOptions& options);
/// sum over tokens of dy x rstd: [H] fp32.
at::Tensor rms_norm_weight_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd);

// ---- Queries and keys as attention reads them: each head normed, where there is a weight, then
// the first rotary_dim channels of each head rotated by the token's angles, where there are any.
struct HeadsInput {
  at::Tensor x;       ///< [T, heads * head_dim]
  at::Tensor weight;  ///< [head_dim] of the norm of each head, or undefined
  double eps = 0, offset = 0;
  bool rotates = true;  ///< false for values, on CUDA alone
};
struct HeadsOutput {
  at::Tensor y;     ///< like x; x itself, rotated in place, where there is no norm
  at::Tensor rstd;  ///< [T * heads], or undefined
};
/// Of one to three tensors, on CUDA in one launch.   @param angles null: nothing is rotated
std::vector<HeadsOutput> heads_forward(const std::vector<HeadsInput>& inputs,
                                       const RopeAngles* angles, int64_t head_dim);
/// The gradients of the inputs.
/// @param grads of the outputs; overwritten, and on CUDA the memory of the result
/// @param rstd of the outputs
/// @param into where the gradients are written, instead: rows may lie further apart than they are
/// long; on CUDA alone
std::vector<at::Tensor> heads_backward(const std::vector<HeadsInput>& inputs,
                                       const std::vector<at::Tensor>& grads,
                                       const std::vector<at::Tensor>& rstd,
                                       const RopeAngles* angles, int64_t head_dim,
                                       const std::vector<at::Tensor>& into = {});

/// @param spare columns of room behind each row of the result; on CUDA alone
at::Tensor gated_forward(Gating gating, const at::Tensor& gate, const at::Tensor& up,
                         int64_t spare = 0);
/// Overwrites gate and up with their gradients.
void gated_backward_(Gating gating, const at::Tensor& dh, at::Tensor& gate, at::Tensor& up);
/// And dh with what `gated_forward` gave. On CUDA alone.
void gated_backward_and_forward_(Gating gating, at::Tensor& dh, at::Tensor& gate, at::Tensor& up);

/// Counter-based dropout of x [T, channels]; its own backward with the same parameters.
at::Tensor dropout(const at::Tensor& x, const BatchContext& batch, double probability,
                   uint32_t module);

/// Causal attention within each document. q [T, heads * head_dim], k and v [T, kv_heads *
/// head_dim].
enum class CudaAttention : uint8_t {
  kFlash,    ///< FlashAttention 2
  kCudnn,    ///< cuDNN's kernel where it can be used, else FlashAttention 2
  kMeasure,  ///< the faster of the two, timed at the first batch of a shape
};
struct AttentionShape {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  double scale = 0;    ///< of scores: 1 / sqrt(head_dim)
  int64_t window = 0;  ///< keys that a query sees, its own included; 0: all before it
  double softcap = 0;  ///< scores become cap * tanh(score / cap); 0: no cap
  CudaAttention on_cuda = CudaAttention::kFlash;
};
/// Whether what attention queues on CUDA depends on how many documents and tokens there are, and
/// not on where the documents end.
bool attention_is_static(at::ScalarType dtype, const AttentionShape& shape);
struct AttentionOutput {
  at::Tensor out;  ///< [T, heads * head_dim]
  /// log-sum-exp of the scores (and sinks): one tensor [heads, T], but where LibTorch's kernel for
  /// CPU serves one per document [1, heads, S], and where cuDNN's does [documents, heads, S, 1].
  std::vector<at::Tensor> lse;
  bool by_cudnn = false;  ///< the backward pass has to be cuDNN's, too
};
/// @param sinks [heads] or undefined: each head's softmax has this score beside those of the keys;
/// it takes its share of the whole, and gives no value (arXiv:2309.17453, as gpt-oss has it)
AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const BatchContext& batch, const AttentionShape& shape,
                                  const at::Tensor& sinks = {});
struct AttentionGrads {
  at::Tensor dq, dk, dv;
};
AttentionGrads attention_backward(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const AttentionOutput& saved,
                                  const BatchContext& batch, const AttentionShape& shape);
/// Of the sinks that forward had: [heads] fp32. @param saved what forward gave
at::Tensor attention_sinks_grad(const at::Tensor& d_out, const AttentionOutput& saved,
                                const at::Tensor& sinks);

/// What a loss's gradient is multiplied by.
struct GradScale {
  // NOLINTNEXTLINE(google-explicit-constructor): a number is one
  GradScale(double of, at::Tensor times = {}) : value(of), factor(std::move(times)) {}
  double value;
  at::Tensor factor;  ///< [1] fp32 on the device, times `value`; undefined: 1; on CUDA alone
};
/// Overwrites logits [N, vocab] with the gradient of grad_scale * sum of losses; returns losses [N]
/// fp32. labels [N] int32; a row with a negative one has neither loss nor gradient. A `softcap`
/// above 0 makes cap * tanh(logit / cap) of the logits first.
at::Tensor token_losses_and_grad_(at::Tensor& logits, const at::Tensor& labels, double softcap,
                                  const GradScale& grad_scale);
at::Tensor token_losses(const at::Tensor& logits, const at::Tensor& labels, double softcap);

/// An `UpdateGate` that is open, with factor 1: [sizeof(UpdateGate)] uint8 on `device`. Updates
/// that are queued before the host knows a step's numbers take the factor from it.
at::Tensor open_gate(at::Device device);
/// What a step's gate depends on beside its numbers.
struct GateRule {
  int64_t num_losses = 0;   ///< of each rank
  double label_tokens = 1;  ///< of all ranks: the loss is the sum of all losses over it
  double max_norm = 0;      ///< of the gradients, clipped where theirs is larger; 0: never clipped
};
/// Sets the factor that clips the gradients (torch.nn.utils.clip_grad_norm_), to the bit the same
/// on CPU and CUDA. Closes the gate for good where the loss or a norm is not finite.
/// @param numbers [ranks, columns] fp64: of each rank the gradients' norm, its losses, and more
void decide_update_(at::Tensor& gate, const at::Tensor& numbers, const GateRule& rule);

/// AdamW on [begin, end) of flat fp32 buffers; `compute` (may be the same tensor as master) is
/// refreshed.   @param gate of `open_gate`, read where the update is computed; undefined: none
void adamw_(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
            at::Tensor& compute, int64_t begin, int64_t end, const AdamWParams& params,
            const at::Tensor& gate = {});
/// The moments of 8-bit AdamW: codes of a DynamicMap (signed of exp_avg, unsigned of exp_avg_sq)
/// times the factor of their block. A parameter's blocks begin with it; its last may be shorter.
struct BlockwiseMoments {
  at::Tensor exp_avg, exp_avg_sq;                ///< [blocks, kStateBlock] uint8
  at::Tensor exp_avg_absmax, exp_avg_sq_absmax;  ///< [blocks] fp32
  at::Tensor block_begin;                        ///< [blocks] int64: its first element of [flat]
  at::Tensor block_numel;                        ///< [blocks] int16
  DynamicMap exp_avg_map, exp_avg_sq_map;        ///< all on one device
};
/// AdamW on the blocks [first_block, end_block) of flat fp32 buffers, with bitsandbytes' numerics;
/// `compute` (may be the same tensor as master) is refreshed. On a CPU codes and factors are
/// bitsandbytes' bit for bit, parameters to the rounding of LibTorch's square root.
/// Memory-bound: a value takes 16 bytes, 18 where there is a copy in bf16.
/// @param gate as `adamw_`'s
void adamw_8bit_(at::Tensor& master, const at::Tensor& grad, BlockwiseMoments& moments,
                 at::Tensor& compute, int64_t first_block, int64_t end_block,
                 const AdamW8bitParams& params, const at::Tensor& gate = {});
/// Sum of squares: a scalar in fp64 where `flat` lies, in an order that does not depend on the
/// number of threads.
at::Tensor sum_of_squares(const at::Tensor& flat);

}  // namespace sftrun::kernels
