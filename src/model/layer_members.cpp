#include "layer_members.h"

#include <cmath>

#include "sftrun/core/error.h"

namespace sftrun::model {
namespace {

kernels::Gating gating_of(const spec::ArchSpec& arch) {
  switch (arch.activation) {
    case spec::Activation::kSilu:
      return kernels::Activation::kSilu;
    case spec::Activation::kGeluTanh:
      return kernels::Activation::kGeluTanh;
    case spec::Activation::kClampedSwiglu:
      return {kernels::Activation::kClampedSwiglu, static_cast<float>(arch.swiglu_alpha),
              static_cast<float>(arch.swiglu_limit)};
  }
  invariant_failed(__FILE__, __LINE__, "every Activation is a kernel's");
}

}  // namespace

layers::Linear& member(Layer& layer, spec::LinearSlot slot) {
  switch (slot) {
    case spec::LinearSlot::kQ:
      return layer.q;
    case spec::LinearSlot::kK:
      return layer.k;
    case spec::LinearSlot::kV:
      return layer.v;
    case spec::LinearSlot::kQkv:
      return layer.qkv;
    case spec::LinearSlot::kO:
      return layer.o;
    case spec::LinearSlot::kGate:
      return layer.gate;
    case spec::LinearSlot::kUp:
      return layer.up;
    case spec::LinearSlot::kGateUp:
      return layer.gate_up;
    case spec::LinearSlot::kDown:
      return layer.down;
    case spec::LinearSlot::kRouter:
      return layer.mixture.router;
    case spec::LinearSlot::kSharedGate:
      return layer.mixture.shared.gate;
    case spec::LinearSlot::kSharedUp:
      return layer.mixture.shared.up;
    case spec::LinearSlot::kSharedDown:
      return layer.mixture.shared.down;
    case spec::LinearSlot::kSharedRouter:
      return layer.mixture.shared.router;
    case spec::LinearSlot::kDeltaQkv:
      return layer.delta_net.in_qkv;
    case spec::LinearSlot::kDeltaZ:
      return layer.delta_net.in_z;
    case spec::LinearSlot::kDeltaB:
      return layer.delta_net.in_b;
    case spec::LinearSlot::kDeltaA:
      return layer.delta_net.in_a;
    case spec::LinearSlot::kDeltaOut:
      return layer.o;
    case spec::LinearSlot::kPerLayerGate:
      return layer.per_layer.gate;
    case spec::LinearSlot::kPerLayerProjection:
      return layer.per_layer.projection;
  }
  invariant_failed(__FILE__, __LINE__, "every LinearSlot is a member");
}

layers::Norm& member(Layer& layer, spec::NormSlot slot) {
  switch (slot) {
    case spec::NormSlot::kAttentionIn:
      return layer.attention_in;
    case spec::NormSlot::kQuery:
      return layer.q_norm;
    case spec::NormSlot::kKey:
      return layer.k_norm;
    case spec::NormSlot::kAttentionOut:
      return layer.attention_out;
    case spec::NormSlot::kFeedForwardIn:
      return layer.feed_forward_in;
    case spec::NormSlot::kFeedForwardOut:
      return layer.feed_forward_out;
    case spec::NormSlot::kDelta:
      return layer.delta_net.norm;
    case spec::NormSlot::kDenseOut:
      return layer.dense_out;
    case spec::NormSlot::kExpertsIn:
      return layer.experts_in;
    case spec::NormSlot::kExpertsOut:
      return layer.experts_out;
    case spec::NormSlot::kPerLayerOut:
      return layer.per_layer.out;
  }
  invariant_failed(__FILE__, __LINE__, "every NormSlot is a member");
}

Place member(Layer& layer, spec::WeightSlot slot) {
  const auto of = [](auto& weight) { return Place{&weight.weight, &weight.parameter}; };
  switch (slot) {
    case spec::WeightSlot::kSinks:
      return of(layer.sinks);
    case spec::WeightSlot::kDeltaConv:
      return of(layer.delta_net.conv);
    case spec::WeightSlot::kDeltaALog:
      return of(layer.delta_net.a_log);
    case spec::WeightSlot::kDeltaDtBias:
      return of(layer.delta_net.dt_bias);
    case spec::WeightSlot::kRouterScale:
      return of(layer.mixture.router_norm);
    case spec::WeightSlot::kExpertScale:
      return of(layer.mixture.expert_scale);
    case spec::WeightSlot::kLayerScalar:
      return of(layer.scalar);
  }
  invariant_failed(__FILE__, __LINE__, "every WeightSlot is a member");
}

void describe(Layer& layer, const spec::ArchSpec& arch, int64_t index) {
  const spec::LayerSpec& spec = arch.layers[static_cast<size_t>(index)];
  const spec::AttentionSizes sizes = spec::attention_sizes(arch, index);
  const double scale = arch.attention_scale > 0
                           ? arch.attention_scale
                           : 1.0 / std::sqrt(static_cast<double>(sizes.head_dim));
  layer.index = index;
  layer.keys_of = spec.keys_of;
  layer.value_is_key = spec.value_is_key;
  layer.attention = {.num_heads = sizes.num_heads,
                     .num_kv_heads = sizes.num_kv_heads,
                     .head_dim = sizes.head_dim,
                     .scale = scale,
                     .window = spec.window,
                     .softcap = arch.attention_softcap};
  layer.gates_attention = arch.attention_gate;
  if (spec.mixer == spec::Mixer::kDeltaNet) {
    layer.delta_net.num_key_heads = arch.delta_net.num_key_heads;
    layer.delta_net.num_value_heads = arch.delta_net.num_value_heads;
    layer.delta_net.key_dim = arch.delta_net.key_dim;
    layer.delta_net.value_dim = arch.delta_net.value_dim;
  }
  layer.rope = spec.rope;
  layer.residual_scale = arch.residual_scale;
  if (spec.sparse) {
    layer.mixture.top_k = arch.mixture.top_k;
    layer.mixture.normalise = arch.mixture.normalise;
    layer.mixture.router_norm.eps = arch.rms_norm_eps;
    if (arch.mixture.beside_dense)
      layer.mixture.router_scale = 1 / std::sqrt(static_cast<double>(arch.hidden_size));
  }
  layer.gating = gating_of(arch);
}

}  // namespace sftrun::model
