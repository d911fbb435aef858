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

/// Mixture of experts (MoE) in place of the MLP: a router selects top_k experts for each token, and
/// the experts' outputs are summed with the router's weights.
namespace sftrun::kernels {

/// LoRA on one matrix of every expert: W_e + scale * B_e A_e (PEFT's `target_parameters`).
struct ExpertLora {
  Parameter* a = nullptr;  ///< [experts, r, in_features]
  Parameter* b = nullptr;  ///< [experts, out_features, r]
  double scale = 1;
  uint32_t module_number = 0;  ///< key of its random initial values; unique in the model
};

/// One matrix of all experts of a layer.
struct ExpertMatrix {
  std::string name;   ///< HF name: "model.layers.0.mlp.experts.gate_up_proj"
  at::Tensor weight;  ///< [experts, out_features, in_features] in the compute dtype
  /// Replaces `weight` if quantised: [experts * out_features, in_features].
  std::optional<QuantizedMatrix> quantized;
  Parameter* parameter = nullptr;
  Weight bias;  ///< [experts, out_features]
  std::optional<ExpertLora> lora;
  bool trains() const {
    return parameter != nullptr || bias.parameter != nullptr || lora.has_value();
  }
};

/// An expert that processes every token:
///     sigmoid(router(x)) * down(activation(gate(x)) * up(x))
struct SharedExpert {
  Linear gate, up, down;
  Linear router;  ///< [1, hidden]
  bool defined() const { return !router.name.empty(); }
  bool trains() const { return gate.trains() || up.trains() || down.trains() || router.trains(); }
};

struct Mixture {
  SharedExpert shared;
  Linear router;         ///< [experts, hidden]; computed in fp32, including its adapter
  ExpertMatrix gate_up;  ///< rows of gate, then rows of up
  ExpertMatrix down;
  Norm router_norm;         ///< set where the router has its own normed input
  double router_scale = 1;  ///< multiplies the router's logits
  Weight expert_scale;      ///< [experts]: multiplies each expert's routing weight
  int64_t top_k = 0;
  bool normalise = true;  ///< the weights of a token's chosen experts sum to 1

  bool defined() const { return top_k > 0; }
  bool trains() const {
    return router.trains() || gate_up.trains() || down.trains() || shared.trains() ||
           router_norm.parameter != nullptr || expert_scale.parameter != nullptr;
  }
};

/// Sorts the chosen experts of all tokens. On CUDA one launch, without synchronisation.
/// @param chosen [T, top_k] expert indices, int64 or int32
Routes routes_of(const at::Tensor& chosen, int64_t num_experts);

/// A matrix of all experts, dense or quantised.
struct ExpertStack {
  at::Tensor dense;  ///< [experts, rows, columns]; undefined where `quantized` is not null
  const QuantizedMatrix* quantized = nullptr;  ///< [experts * rows, columns]
  int64_t experts = 0;

  // NOLINTNEXTLINE(google-explicit-constructor): a tensor is an expert stack
  ExpertStack(at::Tensor of) : dense(std::move(of)), experts(dense.size(0)) {}
  ExpertStack(const QuantizedMatrix& of, int64_t num_experts)
      : quantized(&of), experts(num_experts) {}

  int64_t rows() const { return quantized ? quantized->rows / experts : dense.size(1); }
  int64_t columns() const { return quantized ? quantized->columns : dense.size(2); }
  /// Matrix of one expert; dense ones are returned unchanged, whatever `dtype`.
  at::Tensor values(int64_t expert, at::ScalarType dtype) const;
};

/// x [T', K], rows sorted by expert, times each expert's matrix: x_e w_e^T with w [experts, N, K]
/// (`transposed`), or x_e w_e with w [experts, K, N]. Returns [T', N].
at::Tensor grouped_matmul(const at::Tensor& x, const ExpertStack& w, bool transposed,
                          const Routes& routes);
/// out [experts, N, K] fp32 += g_e^T x_e.
void add_grouped_matmul_tn_(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                            const Routes& routes);

/// The same in bf16 through LibTorch's grouped product. Dimensions are padded so that rows are
/// multiples of 16 bytes. One launch on sm_90 and sm_100; elsewhere LibTorch does one per matrix.
/// @param ends [experts] int32 on the device of x: end row of each expert
at::Tensor grouped_matmul_at_once(const at::Tensor& x, const at::Tensor& w, bool transposed,
                                  const at::Tensor& ends);
/// [experts, N, K] bf16: g_e^T x_e; undefined values for an expert without rows. The row stride of
/// the result may exceed its row length.
at::Tensor grouped_matmul_tn_at_once(const at::Tensor& g, const at::Tensor& x,
                                     const at::Tensor& ends);

/// State of the router load-balancing loss of one batch (arXiv:2101.03961, equations 4 to 6), as in
/// transformers' load_balancing_loss_func. Over the tokens of all layers together:
///     loss = experts * sum over experts of (fraction of tokens routed to it) * (mean probability)
/// Each gradient depends on the fractions of all layers, so the forward passes count them, and the
/// gradient is known only after `close_balance`.
struct RouterBalance {
  bool counts = false;     ///< forward passes add their counts
  at::Tensor ends;         ///< [experts] int64: sum of the layers' `Routes::ends`
  at::Tensor probability;  ///< [experts] fp64: sum over tokens and layers
  int64_t rows = 0;        ///< number of tokens, summed over layers
  /// [experts] fp32: gradient of the probabilities, the same for every token; undefined: none.
  at::Tensor d_probability;
};
/// Adds one layer's choices if `counts` is set. @param probabilities [T, experts] fp32
void count_choices(RouterBalance& balance, const at::Tensor& probabilities, const Routes& routes);
/// Computes the loss and stops counting (gradient checkpointing runs layers again).
/// @return the loss, unscaled; sets `d_probability` to the gradient of scale * loss
at::Tensor close_balance(RouterBalance& balance, double scale);

/// State that the forward passes save.
struct SharedExpertRun {
  at::Tensor gate, up;  ///< [T, inner]
  at::Tensor answer;    ///< [T, hidden], before multiplication by the weight
  at::Tensor weight;    ///< CPU: [T, 1] fp32
  at::Tensor logit;     ///< CUDA: [T, 1], logit of the weight
  LowRank inner_low, down_low, router_low;
};
struct MixtureRun {
  at::Tensor logits;                  ///< [T, experts] fp32
  at::Tensor routed_by, router_rstd;  ///< router input with its own norm, and the norm's rstd
  TokenChoice choice;
  Routes routes;
  at::Tensor gate, up;  ///< CPU: [T * top_k, inner]
  at::Tensor gate_up;   ///< CUDA: both in one tensor, gate first
  LowRank router_low;   ///< of the router's adapter
  SharedExpertRun shared;
};
/// @param routed_by [T, hidden] input of the router before `router_norm`; undefined: x
at::Tensor mixture_forward(const Mixture& mixture, Gating gating, const at::Tensor& x,
                           const BatchContext& batch, MixtureRun* keep,
                           const at::Tensor& routed_by = {});
struct MixtureGrads {
  at::Tensor dx, d_routed_by;  ///< d_routed_by: only if forward had `routed_by`
};
/// Adds to the parameters' gradients.
/// @param x the input of the forward pass   @return undefined tensors when !needs_dx
MixtureGrads mixture_backward(const Mixture& mixture, Gating gating, MixtureRun run,
                              const at::Tensor& dy, const at::Tensor& x, const BatchContext& batch,
                              bool needs_dx);

}  // namespace sftrun::kernels
