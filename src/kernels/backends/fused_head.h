#pragma once

#include "sftrun/kernels/backend.h"

namespace sftrun::kernels {

/// `Backend::head_loss` of the fused backend.
HeadLoss fused_head_loss(const at::Tensor& input, const Head& head, const at::Tensor& labels,
                         const GradScale& grad_scale, HeadGrad wanted, const BatchContext& rows);

}  // namespace sftrun::kernels
