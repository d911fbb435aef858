#include "blocks/block.h"

namespace sftrun::plan::mlp {
namespace {

/// The gradients before the magnitudes of a gate, and of up while it is multiplied in fp32
/// (`times_gains` in src/layers/linear/fused_linears.cpp).
int64_t dora_gates(const StepContext& step, int64_t inner) {
  const bool is_rounded = step.shape.element_bytes != kFp32;
  return step.rows((is_rounded ? 2 : 1) * inner) + step.fp32_rows(inner);
}

/// The peaks on a GPU (src/layers/fused/feed_forward.cpp).
int64_t backward_on_gpu(const StepContext& step, int64_t inner) {
  const int64_t hidden = step.rows(step.arch.hidden_size), gated = step.rows(inner),
                gradient = matrix_gradient(step, step.arch.hidden_size, inner);
  // A joint linear overwrites the gradient of the gated product with that product. Without one, it is
  // computed again beside its gradient, or beside the gradient of the matrix. Dropout of the adapter's
  // input, or of its gradient, is one more.
  const int64_t through_down =
      step.joins_linears ? gated
                         : gated + std::max(gated, gradient) + (step.has_dropout ? gated : 0);
  const int64_t through_gates = hidden + gradient + (step.has_dropout ? hidden : 0) +
                                (step.has_dora ? dora_gates(step, inner) : 0);
  // Gate and up are freed before the norm's backward pass.
  return std::max({through_down, through_gates, norm_backward(step) - 2 * gated});
}

TrainingBytes training(const StepContext& step, int64_t layer) {
  const int64_t hidden = step.arch.hidden_size, inner = spec::intermediate_size(step.arch, layer);
  TrainingBytes bytes{.kept = step.rows(2 * inner)};
  if (step.shape.on_gpu) {
    bytes.in_forward = step.rows(inner + hidden);  // the gated product, and the block's output
    bytes.in_backward = backward_on_gpu(step, inner);
  } else {
    bytes.in_backward = step.rows(2 * inner);
    // The gated product after dropout, or a gradient before its magnitude; the normed input.
    if (step.has_dora || step.has_dropout) bytes.in_backward += step.rows(inner + hidden);
  }
  return bytes;
}

GenerationBytes generation(const StepContext& pass, int64_t layer) {
  return {.pass = pass.rows(3 * spec::intermediate_size(pass.arch, layer))};
}

}  // namespace

const BlockRow kRow{.name = "mlp", .title = "MLP", .training = training, .generation = generation};

}  // namespace sftrun::plan::mlp
