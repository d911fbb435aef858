#include "describe_layer.h"

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
  layer.mixer = layers::make_mixer(
      arch, index,
      {.dtype = options.dtype, .device = options.device, .attention = options.attention});
  if (arch.layers[static_cast<size_t>(index)].sparse)
    describe(layer.feed_forward.mixture, arch, options);
  layer.gating = gating_of(arch);
  layer.residual_scale = arch.residual_scale;
  layer.recomputed = options.recomputed;
  return layer;
}

}  // namespace sftrun::model
