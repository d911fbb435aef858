#include "describe_layer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/layers/attention.h"
#include "sftrun/layers/delta_net.h"

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

bool has_borrowers(const spec::ArchSpec& arch, int64_t index) {
  return std::any_of(arch.layers.begin(), arch.layers.end(),
                     [&](const spec::LayerSpec& layer) { return layer.keys_of == index; });
}

std::unique_ptr<layers::Mixer> make_attention(const spec::ArchSpec& arch, int64_t index,
                                              const DecoderOptions& options) {
  const spec::LayerSpec& spec = arch.layers[static_cast<size_t>(index)];
  const spec::AttentionSizes sizes = spec::attention_sizes(arch, index);
  auto attention = std::make_unique<layers::Attention>();
  attention->shape = {.num_heads = sizes.num_heads,
                      .num_kv_heads = sizes.num_kv_heads,
                      .head_dim = sizes.head_dim,
                      .scale = arch.attention_scale > 0
                                   ? arch.attention_scale
                                   : 1.0 / std::sqrt(static_cast<double>(sizes.head_dim)),
                      .window = spec.window,
                      .softcap = arch.attention_softcap,
                      .on_cuda = options.attention};
  attention->keys_of = spec.keys_of;
  attention->lends_keys = has_borrowers(arch, index);
  attention->value_is_key = spec.value_is_key;
  attention->gates_output = arch.attention_gate;
  attention->rope = spec.rope;
  if (arch.value_norm && spec.keys_of < 0) {  // without a weight of its own
    attention->v_norm.eps = arch.rms_norm_eps;
    attention->v_norm.weight =
        at::ones({sizes.head_dim}, at::TensorOptions().dtype(options.dtype).device(options.device));
  }
  return attention;
}

std::unique_ptr<layers::Mixer> make_delta_net(const spec::ArchSpec& arch, int64_t /*index*/,
                                              const DecoderOptions& /*options*/) {
  auto net = std::make_unique<layers::DeltaNet>();
  net->num_key_heads = arch.delta_net.num_key_heads;
  net->num_value_heads = arch.delta_net.num_value_heads;
  net->key_dim = arch.delta_net.key_dim;
  net->value_dim = arch.delta_net.value_dim;
  return net;
}

/// By the block's name in spec/blocks.h.
using MakeMixer = std::unique_ptr<layers::Mixer> (*)(const spec::ArchSpec& arch, int64_t index,
                                                     const DecoderOptions& options);
constexpr std::pair<std::string_view, MakeMixer> kMixers[] = {{"attention", make_attention},
                                                              {"delta_net", make_delta_net}};

std::unique_ptr<layers::Mixer> make_mixer(const spec::ArchSpec& arch, int64_t index,
                                          const DecoderOptions& options) {
  for (const spec::BlockTensors& block : spec::layer_blocks(arch, index))
    for (const auto& [name, make] : kMixers)
      if (block.block == name) return make(arch, index, options);
  invariant_failed(__FILE__, __LINE__, "every layer has a mixer");
}

void describe(layers::Mixture& mixture, const spec::ArchSpec& arch, const DecoderOptions& options) {
  mixture.top_k = arch.mixture.top_k;
  mixture.normalise = arch.mixture.normalise;
  mixture.router_norm.eps = arch.rms_norm_eps;
  mixture.ranks = options.tensor_ranks;
  if (arch.mixture.beside_dense)
    mixture.router_scale = 1 / std::sqrt(static_cast<double>(arch.hidden_size));
}

}  // namespace

Layer describe_layer(const spec::ArchSpec& arch, int64_t index, const DecoderOptions& options) {
  Layer layer;
  layer.index = index;
  layer.mixer = make_mixer(arch, index, options);
  if (arch.layers[static_cast<size_t>(index)].sparse)
    describe(layer.feed_forward.mixture, arch, options);
  layer.gating = gating_of(arch);
  layer.residual_scale = arch.residual_scale;
  layer.recomputed = options.recomputed;
  return layer;
}

}  // namespace sftrun::model
