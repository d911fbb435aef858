#pragma once

#include "sftrun/layers/mixture.h"

namespace sftrun::layers {

/// Sets `answer` [T, hidden] of the run; returns the logit of its weight [T, 1], and on CUDA also
/// saves it as `logit` of the run.
at::Tensor shared_expert_output(const SharedExpert& expert, kernels::Gating gating,
                                const at::Tensor& x, const BatchContext& batch,
                                SharedExpertRun& run);
/// CPU: sigmoid(logit) * answer, x [T, hidden] -> [T, hidden] fp32.
at::Tensor shared_expert_forward(const SharedExpert& expert, kernels::Gating gating,
                                 const at::Tensor& x, const BatchContext& batch,
                                 SharedExpertRun& run);
/// Adds to the parameters' gradients. @return gradient of x; undefined when !needs_dx
at::Tensor shared_expert_backward(const SharedExpert& expert, kernels::Gating gating,
                                  SharedExpertRun run, const at::Tensor& dy, const at::Tensor& x,
                                  const BatchContext& batch, bool needs_dx);

}  // namespace sftrun::layers
