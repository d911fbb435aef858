#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/kernels/cpu_table.h"
#include "sftrun/kernels/linear.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/routes.h"

/// A feed-forward half of many experts: a router gives each token a few of them, and what they
/// answer is summed by the router's weights.
namespace sftrun::kernels {

/// LoRA on one matrix of every expert: W_e + scale * B_e A_e (PEFT's `target_parameters`).
struct ExpertLora {
  Parameter* a = nullptr;  ///< [experts, r, in_features]
  Parameter* b = nullptr;  ///< [experts, out_features, r]
  double scale = 1;
  uint32_t module_number = 0;  ///< key of its first values; unique in the model
};

/// One matrix of every expert.
struct ExpertMatrix {
  std::string name;   ///< HF name: "model.layers.0.mlp.experts.gate_up_proj"
  at::Tensor weight;  ///< [experts, out_features, in_features] in the compute dtype
  /// In place of `weight`, in ggml's blocks: [experts * out_features, in_features].
  std::optional<QuantizedMatrix> quantized;
  Parameter* parameter = nullptr;
  Weight bias;  ///< [experts, out_features]
  std::optional<ExpertLora> lora;
  bool trains() const {
    return parameter != nullptr || bias.parameter != nullptr || lora.has_value();
  }
};

/// One more expert, that serves every token: sigmoid(router(x)) * down(activation(gate(x)) *
/// up(x)).
struct SharedExpert {
  Linear gate, up, down;
  Linear router;  ///< [1, hidden]
  bool defined() const { return !router.name.empty(); }
  bool trains() const { return gate.trains() || up.trains() || down.trains() || router.trains(); }
};

struct Mixture {
  SharedExpert shared;
  Linear router;         ///< [experts, hidden], in fp32 with its adapter
  ExpertMatrix gate_up;  ///< gate's rows, then up's
  ExpertMatrix down;
  Norm router_norm;         ///< where the router reads other rows than the experts do
  double router_scale = 1;  ///< of its logits
  Weight expert_scale;      ///< [experts]: a factor of each expert's weight
  int64_t top_k = 0;
  bool normalise = true;  ///< the chosen experts' weights add up to 1

  bool defined() const { return top_k > 0; }
  bool trains() const {
    return router.trains() || gate_up.trains() || down.trains() || shared.trains() ||
           router_norm.parameter != nullptr || expert_scale.parameter != nullptr;
  }
};

/// On CUDA in one launch that the host does not wait for.
/// @param chosen [T, top_k] experts of each token, int64 or int32
Routes routes_of(const at::Tensor& chosen, int64_t num_experts);

/// A matrix of every expert, dense or in ggml's blocks.
struct ExpertStack {
  at::Tensor dense;  ///< [experts, rows, columns]; undefined where `quantized` is not null
  const QuantizedMatrix* quantized = nullptr;  ///< [experts * rows, columns]
  int64_t experts = 0;

  // NOLINTNEXTLINE(google-explicit-constructor): a tensor is one
  ExpertStack(at::Tensor of) : dense(std::move(of)), experts(dense.size(0)) {}
  ExpertStack(const QuantizedMatrix& of, int64_t num_experts)
      : quantized(&of), experts(num_experts) {}

  int64_t rows() const { return quantized ? quantized->rows / experts : dense.size(1); }
  int64_t columns() const { return quantized ? quantized->columns : dense.size(2); }
  /// One expert's, dense ones as they are.
  at::Tensor values(int64_t expert, at::ScalarType dtype) const;
};

/// x [T', K] sorted by expert times w_e^T, w [experts, N, K] (`transposed`), or times w_e of
/// [experts, K, N]: [T', N].
at::Tensor grouped_matmul(const at::Tensor& x, const ExpertStack& w, bool transposed,
                          const Routes& routes);
/// out [experts, N, K] fp32 += g_e^T x_e.
void add_grouped_matmul_tn_(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                            const Routes& routes);

/// The same by LibTorch's grouped products, in bf16: dimensions are padded to whole rows of 16
/// bytes. One launch on sm_90 and sm_100; on other cards, and CPUs, one a matrix.
/// @param ends [experts] int32 on x's device: where each expert's rows end
at::Tensor grouped_matmul_at_once(const at::Tensor& x, const at::Tensor& w, bool transposed,
                                  const at::Tensor& ends);
/// [experts, N, K] bf16: g_e^T x_e, anything where an expert has no row; rows may lie further apart
/// than they are long.
at::Tensor grouped_matmul_tn_at_once(const at::Tensor& g, const at::Tensor& x,
                                     const at::Tensor& ends);

/// For the routers' load-balancing loss of one batch (arXiv:2101.03961, equations 4 to 6), as
/// transformers' load_balancing_loss_func has it: over the tokens of all layers together,
/// experts * sum over experts of (how many of the tokens chose it, as a share) * (its mean
/// probability). All layers' shares are in every gradient, so they are counted in the forward
/// passes and a gradient is there when `close_balance` has seen them all.
struct RouterBalance {
  bool counts = false;     ///< routers add what they choose
  at::Tensor ends;         ///< [experts] int64: the layers' `Routes::ends`, summed
  at::Tensor probability;  ///< [experts] fp64: summed
  int64_t rows = 0;        ///< tokens, of all layers
  /// [experts] fp32: the gradient of each token's probabilities, the same for all; undefined: none.
  at::Tensor d_probability;
};
/// What one layer's router did, if it counts. @param probabilities [T, experts] fp32
void count_choices(RouterBalance& balance, const at::Tensor& probabilities, const Routes& routes);
/// Nothing counts from here on (layers may run again).
/// @return the loss; sets the gradient of `scale` times it
at::Tensor close_balance(RouterBalance& balance, double scale);

/// What the forward passes keep.
struct SharedExpertRun {
  at::Tensor gate, up;  ///< [T, inner]
  at::Tensor answer;    ///< [T, hidden], before its weight
  at::Tensor weight;    ///< CPU: [T, 1] fp32
  at::Tensor logit;     ///< CUDA: [T, 1], of which the weight is the sigmoid
  LowRank inner_low, down_low, router_low;
};
struct MixtureRun {
  at::Tensor logits;                  ///< [T, experts] fp32
  at::Tensor routed_by, router_rstd;  ///< what a router reads that has a norm of its own
  TokenChoice choice;
  Routes routes;
  at::Tensor gate, up;  ///< CPU: [T * top_k, inner]
  at::Tensor gate_up;   ///< CUDA: both, side by side
  LowRank router_low;   ///< of the router's adapter
  SharedExpertRun shared;
};
/// @param routed_by [T, hidden] what the router reads; undefined: x
at::Tensor mixture_forward(const Mixture& mixture, Gating gating, const at::Tensor& x,
                           const BatchContext& batch, MixtureRun* keep,
                           const at::Tensor& routed_by = {});
struct MixtureGrads {
  at::Tensor dx, d_routed_by;  ///< the second where forward had `routed_by`
};
/// Adds to the parameters' gradients.
/// @param x as forward had it   @return undefined tensors when !needs_dx
MixtureGrads mixture_backward(const Mixture& mixture, Gating gating, MixtureRun run,
                              const at::Tensor& dy, const at::Tensor& x, const BatchContext& batch,
                              bool needs_dx);

}  // namespace sftrun::kernels
