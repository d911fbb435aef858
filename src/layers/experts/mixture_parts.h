#pragma once

#include "sftrun/layers/mixture.h"

/// Steps of a mixture of experts that all devices share.
namespace sftrun::layers {

/// The router's logits [T, experts] fp32, from `run.routed_by` if defined, else x; sets
/// `router_rstd` and `router_low` of the run.
at::Tensor router_logits(const Mixture& mixture, const at::Tensor& x, const BatchContext& batch,
                         MixtureRun& run);
/// Gradient of the router's product (logits before their scale) -> gradient of x or of `routed_by`.
/// Adds to the router's parameter gradients.
MixtureGrads router_backward(const Mixture& mixture, MixtureRun& run, const at::Tensor& d_logits,
                             const at::Tensor& x, const BatchContext& batch, bool needs_dx);
/// [experts] fp32: gradient of the probabilities, the same for every token; undefined: none.
at::Tensor balance_grad(const BatchContext& batch);

kernels::ExpertStack stack_of(const ExpertMatrix& matrix, int64_t num_experts);
/// scale * x A^T of the adapter: [rows, r].   @pre the matrix has one
at::Tensor adapter_columns(const at::Tensor& x, const ExpertMatrix& matrix,
                           const kernels::Routes& routes);

// CUDA versions of `mixture_forward` and `mixture_backward` of mixture.h, without synchronisation:
// the host does not know the routes.
at::Tensor mixture_forward_on_device(const Mixture& mixture, kernels::Gating gating,
                                     const at::Tensor& x, const BatchContext& batch,
                                     MixtureRun& run);
MixtureGrads mixture_backward_on_device(const Mixture& mixture, kernels::Gating gating,
                                        MixtureRun run, const at::Tensor& dy, const at::Tensor& x,
                                        const BatchContext& batch, bool needs_dx);

}  // namespace sftrun::layers
