#pragma once

#include "sftrun/kernels/experts.h"
#include "sftrun/kernels/layer.h"

/// What a mixture of experts does alike on every device.
namespace sftrun::kernels {

/// The router's logits [T, experts] fp32, from x or from what the router reads in its place; sets
/// `router_rstd` and `router_low` of the run.
at::Tensor router_logits(const Mixture& mixture, const at::Tensor& x, const BatchContext& batch,
                         MixtureRun& run);
/// From the gradient of the router's product, of logits before their scale, to that of x or of what
/// it is routed by. Adds to the router's gradients.
MixtureGrads router_backward(const Mixture& mixture, MixtureRun& run, const at::Tensor& d_logits,
                             const at::Tensor& x, const BatchContext& batch, bool needs_dx);
/// [experts] fp32: the gradient of each token's probabilities, the same for all; undefined: none.
at::Tensor balance_grad(const BatchContext& batch);

ExpertStack stack_of(const ExpertMatrix& matrix, int64_t num_experts);
/// The adapter's A of x: [rows, r], scaled; undefined without an adapter.
at::Tensor adapter_columns(const at::Tensor& x, const ExpertMatrix& matrix, const Routes& routes);

// `mixture_forward` and `mixture_backward` of experts.h on CUDA: nothing of the routes is known to
// the host, which goes on without waiting.
at::Tensor mixture_forward_on_device(const Mixture& mixture, Gating gating, const at::Tensor& x,
                                     const BatchContext& batch, MixtureRun& run);
MixtureGrads mixture_backward_on_device(const Mixture& mixture, Gating gating, MixtureRun run,
                                        const at::Tensor& dy, const at::Tensor& x,
                                        const BatchContext& batch, bool needs_dx);

}  // namespace sftrun::kernels
