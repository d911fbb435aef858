#include "entries.h"
#include "launch_context.h"

/// Gated activations, dropout, NEFTune noise, cross-entropy.
namespace sftrun::kernels::plugin {

namespace {

cuda::GatedShape gated_shape(const at::Tensor& gate, const at::Tensor& h) {
  if (gate.is_contiguous() && h.is_contiguous()) {
    const int64_t n = gate.numel();
    return {1, n, n, n};
  }
  return {gate.size(0), gate.size(1), gate.stride(0), h.stride(0)};
}

}  // namespace

at::Tensor gated_forward(Gating gating, const at::Tensor& gate, const at::Tensor& up,
                         int64_t spare) {
  at::Tensor h = spare == 0 ? at::empty(gate.sizes(), gate.options())
                            : empty_rows(gate.sizes(), spare, gate.options());
  const Launch launch(gate);
  cuda::launch_gated_forward(type_of(gate), gating, gate.data_ptr(), up.data_ptr(), h.data_ptr(),
                             gated_shape(gate, h), launch.stream());
  launch.check();
  return h;
}

void gated_backward(Gating gating, const at::Tensor& dh, at::Tensor& gate, at::Tensor& up,
                    bool leaves_activation) {
  const Launch launch(gate);
  cuda::launch_gated_backward(
      type_of(gate), gating, dh.data_ptr(), gate.data_ptr(), up.data_ptr(), gated_shape(gate, dh),
      leaves_activation ? cuda::GatedLeaves::kActivation : cuda::GatedLeaves::kGradient,
      launch.stream());
  launch.check();
}

namespace {

/// Pointer to the step number on the device.
const uint32_t* step_of(const at::Tensor& step) {
  return static_cast<const uint32_t*>(step.const_data_ptr());
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, const at::Tensor& token_keys, const at::Tensor& step,
                   const DropoutParams& params) {
  static_assert(sizeof(TokenKey) == 2 * sizeof(int32_t));
  at::Tensor y = at::empty_like(x);
  const Launch launch(x);
  cuda::launch_dropout(type_of(x), x.data_ptr(), y.data_ptr(),
                       static_cast<const TokenKey*>(token_keys.data_ptr()), step_of(step),
                       x.size(0), x.size(1), params, launch.stream());
  launch.check();
  return y;
}

void add_embedding_noise(at::Tensor& x, const at::Tensor& token_keys, const at::Tensor& step,
                         const at::Tensor& cu_seqlens, const NoiseParams& params) {
  const Launch launch(x);
  cuda::launch_embedding_noise(
      type_of(x), x.data_ptr(), static_cast<const TokenKey*>(token_keys.const_data_ptr()),
      step_of(step), cu_seqlens.const_data_ptr<int32_t>(), cu_seqlens.numel() - 1, x.size(0),
      x.size(1), params, launch.stream());
  launch.check();
}

namespace {

at::Tensor launch_losses(const at::Tensor& logits, const at::Tensor& labels, double softcap,
                         const cuda::LossGradient& gradient) {
  at::Tensor losses = float_rows(logits);
  const Launch launch(logits);
  cuda::launch_cross_entropy(type_of(logits), logits.data_ptr(), labels.data_ptr<int32_t>(),
                             losses.data_ptr<float>(), logits.size(0), logits.size(1),
                             static_cast<float>(softcap), gradient, launch.stream());
  launch.check();
  return losses;
}

}  // namespace

at::Tensor cross_entropy(at::Tensor& logits, const at::Tensor& labels, double softcap,
                         const GradScale& grad_scale) {
  const auto data_of = [](const at::Tensor& factors) {
    return factors.defined() ? factors.const_data_ptr<float>() : nullptr;
  };
  return launch_losses(logits, labels, softcap,
                       {.is_wanted = true,
                        .scale = static_cast<float>(grad_scale.value),
                        .factor = data_of(grad_scale.factor),
                        .row_factors = data_of(grad_scale.row_factors)});
}

at::Tensor cross_entropy_loss(const at::Tensor& logits, const at::Tensor& labels, double softcap) {
  return launch_losses(logits, labels, softcap, {});
}

}  // namespace sftrun::kernels::plugin
