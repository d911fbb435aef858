#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/kernels/grouped_matmul.h"
#include "sftrun/kernels/routes.h"
#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/linear.h"

/// Mixture of experts (MoE) in place of the MLP: a router selects top_k experts for each token, and
/// the experts' outputs are summed with the router's weights.
namespace sftrun::layers {

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
  std::optional<kernels::QuantizedMatrix> quantized;
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
  /// Tensor parallelism: each rank has some inner channels of every expert; null: all.
  const TensorRanks* ranks = nullptr;

  bool defined() const { return top_k > 0; }
  bool trains() const {
    return router.trains() || gate_up.trains() || down.trains() || shared.trains() ||
           router_norm.parameter != nullptr || expert_scale.parameter != nullptr;
  }
};

/// State that the forward passes save.
struct SharedExpertRun {
  at::Tensor gate, up;  ///< [T, inner]
  at::Tensor output;    ///< [T, hidden], before multiplication by the weight
  at::Tensor weight;    ///< CPU: [T, 1] fp32
  at::Tensor logit;     ///< CUDA: [T, 1], logit of the weight
  LowRank inner_low, down_low, router_low;
};
struct MixtureRun {
  at::Tensor logits;                  ///< [T, experts] fp32
  at::Tensor routed_by, router_rstd;  ///< router input with its own norm, and the norm's rstd
  kernels::TokenChoice choice;
  kernels::Routes routes;
  at::Tensor gate, up;  ///< CPU: [T * top_k, inner]
  at::Tensor gate_up;   ///< CUDA: both in one tensor, gate first
  LowRank router_low;   ///< of the router's adapter
  SharedExpertRun shared;
};
/// @param routed_by [T, hidden] input of the router before `router_norm`; undefined: x
at::Tensor mixture_forward(const Mixture& mixture, kernels::Gating gating, const at::Tensor& x,
                           const BatchContext& batch, MixtureRun* keep,
                           const at::Tensor& routed_by = {});
struct MixtureGrads {
  at::Tensor dx, d_routed_by;  ///< d_routed_by: only if forward had `routed_by`
};
/// Adds to the parameters' gradients.
/// @param x the input of the forward pass   @return undefined tensors when !needs_dx
MixtureGrads mixture_backward(const Mixture& mixture, kernels::Gating gating, MixtureRun run,
                              const at::Tensor& dy, const at::Tensor& x, const BatchContext& batch,
                              bool needs_dx);

}  // namespace sftrun::layers
