#pragma once

#include "sftrun/layers/backend.h"

namespace sftrun::layers {

/// `Backend::head_loss` of the fused backend.
HeadLoss fused_head_loss(const at::Tensor& input, const Head& head, const at::Tensor& labels,
                         const kernels::GradScale& grad_scale, HeadGrad wanted,
                         const BatchContext& rows);
/// `Backend::embedding_loss` of the fused backend.
HeadLoss fused_embedding_loss(const at::Tensor& input, const Head& head, const PooledRows& rows,
                              const ScoreLoss& loss, double scale, HeadGrad wanted);
/// `Backend::score_loss` of the fused backend.
HeadLoss fused_score_loss(const at::Tensor& input, const Head& head, const ScoreLoss& loss,
                          double scale, HeadGrad wanted);
/// `Backend::distillation_loss` of the fused backend.
HeadLoss fused_distillation_loss(const at::Tensor& input, const Head& head,
                                 const at::Tensor& labels, const TeacherTargets& targets,
                                 const kernels::GradScale& grad_scale, HeadGrad wanted,
                                 const BatchContext& rows);
/// `Backend::label_losses` of the fused backend.
inline at::Tensor fused_label_losses(const at::Tensor& input, const Head& head,
                                     const at::Tensor& labels, const BatchContext& rows) {
  return label_losses(head, input, labels, rows);
}

}  // namespace sftrun::layers
