#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sftrun/kernels/linear.h"
#include "sftrun/kernels/ops.h"

/// What a block is made of, with autograd. Two implementations of one contract: `fused` saves
/// little, works in place and sums parameter gradients straight into their flat buffer; `plain`
/// composes ATen operations as transformers and peft do. Gradients of parameters end up in
/// `Parameter::grad` either way. Linears, norms and the batch must outlive the backward pass.
namespace sftrun::kernels {

struct BlockOps {
  const char* name;
  at::Tensor (*rms_norm)(const at::Tensor& x, const Norm& norm);
  /// Linears that share their input: x [T, in] -> one [T, out] each.
  std::vector<at::Tensor> (*linears)(const at::Tensor& x, const std::vector<const Linear*>& group,
                                     const BatchContext& batch);
  /// Rotates q and k (which it may overwrite) and attends. -> [T, heads * head_dim]
  at::Tensor (*attention)(at::Tensor q, at::Tensor k, at::Tensor v, const BatchContext& batch,
                          const AttentionShape& shape);
  at::Tensor (*swiglu)(const at::Tensor& gate, const at::Tensor& up);
};

const BlockOps& fused_ops();
const BlockOps& plain_ops();

/// The language-model head and the cross-entropy loss as one operation over chunks of rows: logits
/// [N, vocab] never exist. The gradient is computed in the forward pass.
struct HeadLoss {
  double loss_sum = 0;  ///< sum over rows, not yet scaled
  at::Tensor
      grad_hidden;  ///< [N, hidden], gradient of grad_scale * loss_sum; undefined without gradients
};
/// @param hidden [N, hidden] rows that carry a label   @param labels [N] int32
/// @param grad_scale 1 / label tokens of the global batch   @param with_grad false: loss only
HeadLoss head_loss(const at::Tensor& hidden, const Linear& head, const at::Tensor& labels,
                   double grad_scale, bool with_grad);
/// The same by plain operations in fp32 (`plain` backend).
HeadLoss head_loss_plain(const at::Tensor& hidden, const Linear& head, const at::Tensor& labels,
                         double grad_scale, bool with_grad);

}  // namespace sftrun::kernels
