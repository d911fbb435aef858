#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "sftrun/kernels/layer.h"
#include "sftrun/kernels/ops.h"

/// Two implementations of a decoder layer and of the loss, under one contract: `fused` has its
/// backward pass written out, keeps little, works in place and sums parameter gradients straight
/// into their flat buffer; `plain` composes ATen operations as transformers and peft do, under
/// autograd. Gradients of parameters end up in `Parameter::grad` either way.
namespace sftrun::kernels {

/// A layer's forward pass, waiting for its backward pass. The layer and the batch must outlive it.
class LayerRun {
 public:
  virtual ~LayerRun() = default;
  /// Once. Adds to the parameters' gradients.
  /// @param grad gradient of the layer's output [T, hidden]; rows may lie further apart than they
  /// are long, and what is between them may be overwritten
  /// @return gradient of its input; undefined when !needs_input_grad
  virtual at::Tensor backward(const at::Tensor& grad, bool needs_input_grad) = 0;
};

enum class HeadGrad { kNone, kParameters, kInput };  ///< each includes those before it

struct HeadLoss {
  at::Tensor loss_sum;    ///< scalar in fp64, on the device: sum over rows, not yet scaled
  at::Tensor grad_input;  ///< [N, hidden], gradient of grad_scale * loss_sum (kInput)
};

struct Backend {
  const char* name;
  /// x [T, hidden] -> [T, hidden]. Keeps what the backward pass needs in `run`; null: nothing.
  at::Tensor (*layer_forward)(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                              std::unique_ptr<LayerRun>* run);
  /// Final norm, language-model head and cross-entropy over chunks of rows: logits [N, vocab] never
  /// exist. The gradient is computed in the forward pass.
  /// @param input [N, hidden] rows that carry a label   @param labels [N] int32
  /// @param grad_scale 1 / label tokens of the global batch
  /// @param rows what dropout reads of the N rows (`dropout_rows`); empty: there is none
  HeadLoss (*head_loss)(const at::Tensor& input, const Head& head, const at::Tensor& labels,
                        const GradScale& grad_scale, HeadGrad wanted, const BatchContext& rows);
};

/// What dropout reads of some of a batch's rows, and nothing else; empty where it is off.
/// @param rows [N] int64
BatchContext dropout_rows(const BatchContext& batch, const at::Tensor& rows);
/// Those from `first` on.
BatchContext dropout_rows(const BatchContext& batch, int64_t first, int64_t count);

const Backend& fused_backend();
const Backend& plain_backend();

// ---- The two halves of the fused forward pass, for generation, whose attention reads a cache.

struct AttentionInputs {
  at::Tensor q, k, v;  ///< [T, heads * head_dim], q and k rotated
  at::Tensor gate;     ///< [T, heads * head_dim], of the output; or undefined
};
/// attended * sigmoid(gate), or attended itself.
at::Tensor gated_attention(const at::Tensor& attended, const at::Tensor& gate);
/// What a layer's delta net answers to a document x [T, hidden], and the state after it.
at::Tensor delta_net_answer(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                            DeltaState& state);
/// And to its next token, x [1, hidden].
at::Tensor delta_net_next(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                          DeltaState& state);
AttentionInputs attention_inputs(const Layer& layer, const at::Tensor& x,
                                 const BatchContext& batch);
/// @param x the layer's input   @param attended [T, heads * head_dim]   @return its output
at::Tensor after_attention(const Layer& layer, const at::Tensor& x, const at::Tensor& attended,
                           const BatchContext& batch);
/// Logits [N, vocab] of rows that went through the last layer, scaled and capped.
at::Tensor logits_of(const Head& head, const at::Tensor& hidden);
/// -log p of each row's label [N] fp32.
at::Tensor label_losses(const Head& head, const at::Tensor& hidden, const at::Tensor& labels);

}  // namespace sftrun::kernels
