#include "sftrun/layers/per_layer_inputs.h"

#include <ATen/ATen.h>

#include <numbers>

#include "linear/fused_linears.h"
#include "linear/fused_norms.h"

namespace sftrun::layers {
namespace {

constexpr double kHalf = 1 / std::numbers::sqrt2;

}  // namespace

at::Tensor per_layer_forward(const PerLayerInputs& inputs, const at::Tensor& tokens,
                             const at::Tensor& embedded, const BatchContext& batch,
                             PerLayerRun* keep) {
  LowRank low;
  const at::Tensor projected = linears_forward(embedded, {&inputs.projection}, batch, &low)[0]
                                   .mul_(inputs.projection_scale)
                                   .view({-1, inputs.size()});
  const Normed scaled = normed(projected, inputs.norm);
  const at::Tensor rows = inputs.table.weight.index_select(0, tokens) * inputs.table_scale;
  if (keep) *keep = {embedded, projected, scaled.rstd, low};
  const at::Tensor sum = scaled.y.view({tokens.size(0), -1, inputs.size()}) +
                         rows.view({tokens.size(0), -1, inputs.size()});
  return sum * kHalf;
}

at::Tensor per_layer_backward(const PerLayerInputs& inputs, PerLayerRun run,
                              const at::Tensor& tokens, const at::Tensor& d,
                              const BatchContext& batch, bool needs_d_embedded,
                              const at::Tensor& placeholders) {
  const at::Tensor scaled = d * kHalf;
  if (inputs.table.parameter) {
    at::Tensor of_tokens = scaled.view({tokens.size(0), -1});
    if (placeholders.defined()) of_tokens = of_tokens.index_fill(0, placeholders, 0);
    inputs.table.parameter->grad.index_add_(0, tokens, of_tokens, inputs.table_scale);
  }
  const bool through_norm = needs_d_embedded || inputs.projection.trains();
  const at::Tensor d_projected =
      norm_backward(scaled.to(run.projected.scalar_type()).view_as(run.projected), run.projected,
                    inputs.norm, run.rstd, {}, through_norm);
  if (!through_norm) return {};
  return linears_backward({d_projected.mul(inputs.projection_scale).view({tokens.size(0), -1})},
                          run.embedded, run.low, {&inputs.projection}, batch, needs_d_embedded);
}

}  // namespace sftrun::layers
