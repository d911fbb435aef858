#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/distillation.h"
#include "sftrun/layers/layer.h"

/// Two implementations of a decoder layer and of the loss with the same contract.
///   fused: hand-written backward pass, few saved activations, in-place operations; parameter
///          gradients are added directly to their flat buffer.
///   plain: ATen operations under autograd, composed as in transformers and peft.
/// Both add the gradients of parameters to `Parameter::grad`.
namespace sftrun::layers {

/// Saved state of one layer's forward pass, for its backward pass. The layer and the batch must
/// outlive it.
class LayerRun {
 public:
  virtual ~LayerRun() = default;
  /// Call at most once. Adds to the parameters' gradients.
  /// @param grad gradient of the layer's output [T, hidden]; its row stride may exceed `hidden`,
  /// and the gaps between rows may be overwritten
  /// @return gradient of the layer's input; undefined when !needs_input_grad
  virtual at::Tensor backward(const at::Tensor& grad, bool needs_input_grad) = 0;
};

enum class HeadGrad { kNone, kParameters, kInput };  ///< each value includes those before it

struct HeadLoss {
  at::Tensor loss_sum;  ///< scalar in fp64 on the device: sum of row_factor * loss, not scaled
  /// [N, hidden], gradient of grad_scale * sum of (row_factor * loss); set for kInput
  at::Tensor grad_input;
  /// `distillation_loss`: the two parts of `loss_sum`, likewise, before their shares.
  at::Tensor divergence_sum, cross_entropy_sum;
};

/// The loss of the documents of a micro-batch, a function of their scores.
struct ScoredLoss {
  at::Tensor loss_sum;  ///< scalar in fp64 on the device: unscaled
  at::Tensor gradient;  ///< [documents, labels] fp32 of loss_sum; undefined: it is not wanted
};
/// @param scores [documents, labels] fp32, without a graph
using ScoreLoss = std::function<ScoredLoss(const at::Tensor& scores)>;

/// Rows that are pooled to one embedding for each document: the sum of each row's weight times the row.
struct PooledRows {
  at::Tensor documents;  ///< [N] int64: of each row, ascending
  at::Tensor lengths;    ///< [documents] int64: rows of each, at least one
  at::Tensor weights;    ///< [N] fp32
};

struct Backend {
  const char* name;
  /// x [T, hidden] -> [T, hidden].   @param run receives the state for the backward pass; null:
  /// none, as it must be where the batch's adapters are off
  at::Tensor (*layer_forward)(const Layer& layer, const at::Tensor& x, const BatchContext& batch,
                              std::unique_ptr<LayerRun>* run);
  /// Final norm, language-model head and cross-entropy over chunks of rows, so that the full logits
  /// [N, vocab] are never stored. Gradients are computed in the forward pass.
  /// @param input [N, hidden] rows that have a label   @param labels [N] int32
  /// @param grad_scale factors of each row's gradient
  /// @param rows dropout inputs of the N rows (`dropout_rows`); empty: no dropout. Where adapters
  /// are off, `wanted` must be kNone.
  HeadLoss (*head_loss)(const at::Tensor& input, const Head& head, const at::Tensor& labels,
                        const kernels::GradScale& grad_scale, HeadGrad wanted,
                        const BatchContext& rows);
  /// The same of the loss that `targets` describes.
  HeadLoss (*distillation_loss)(const at::Tensor& input, const Head& head, const at::Tensor& labels,
                                const TeacherTargets& targets, const kernels::GradScale& grad_scale,
                                HeadGrad wanted, const BatchContext& rows);
  /// -log p of each row's label [N] fp32, without gradients; arguments as of `head_loss`.
  at::Tensor (*label_losses)(const at::Tensor& input, const Head& head, const at::Tensor& labels,
                             const BatchContext& rows);
  /// Final norm and scores in fp32, and with `wanted` their backward pass.
  /// @param input [documents, hidden] the rows that are scored
  /// @param scale factor of the gradient
  HeadLoss (*score_loss)(const at::Tensor& input, const Head& head, const ScoreLoss& loss,
                         double scale, HeadGrad wanted);
  /// Final norm, and the pooled rows [documents, hidden] in fp32 in place of scores; the head's matrix
  /// has no part.   @param input [N, hidden]
  HeadLoss (*embedding_loss)(const at::Tensor& input, const Head& head, const PooledRows& rows,
                             const ScoreLoss& loss, double scale, HeadGrad wanted);
  /// Passes read the fp32 masters of parameters, as leaves of autograd, not only the copies in the
  /// compute dtype.
  bool reads_masters = false;
};

const Backend& fused_backend();
const Backend& plain_backend();

/// Output of a layer [T, hidden] for the tokens of a generation pass, by the fused backend.
at::Tensor generate_layer(const Layer& layer, const at::Tensor& x, const GenerationPass& pass);
/// Scores [N, labels] fp32 of the last layer's output rows, after the final norm.
at::Tensor scores_of(const Head& head, const at::Tensor& hidden);
/// Logits [N, vocab] of the last layer's output rows: after the final norm, scaled and soft-capped.
at::Tensor logits_of(const Head& head, const at::Tensor& hidden);
/// -log p of each row's label [N] fp32.   @param rows as for `Backend::head_loss`
at::Tensor label_losses(const Head& head, const at::Tensor& hidden, const at::Tensor& labels,
                        const BatchContext& rows = {});
/// What a teacher gives its students: of each row the k likeliest tokens and their log-probabilities.
/// @param num_tokens those behind the first so many, which no tokenizer makes, are of the rest
/// @param temperature divides the logits   @pre k <= num_tokens <= head.vocab_size
TeacherTargets top_tokens(const Head& head, const at::Tensor& hidden, int64_t k, int64_t num_tokens,
                          double temperature);

}  // namespace sftrun::layers
