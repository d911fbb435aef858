#include "blocks/block.h"

namespace sftrun::plan::experts {
namespace {

/// Bytes of rows in the compute dtype.
struct Rows {
  explicit Rows(const StepContext& step)
      : hidden(step.rows(step.arch.hidden_size)),
        inner(step.rows(step.arch.mixture.top_k * step.arch.mixture.intermediate_size)),
        chosen(step.arch.mixture.top_k * hidden),
        shared(step.rows(step.arch.mixture.shared_size)) {}
  int64_t hidden, inner;  ///< inner: of all chosen experts
  int64_t chosen;         ///< a row of each chosen expert
  int64_t shared;         ///< inner values of the shared expert
};

int64_t kept(const StepContext& step) {
  const spec::MixtureSpec& mixture = step.arch.mixture;
  const Rows rows(step);
  // The router's choice: a weight and an expert, and the order of the rows (four int64; on a GPU
  // three int32).
  const int64_t choice_bytes = step.shape.on_gpu ? 20 : 36;
  return 2 * rows.inner + (rows.shared > 0 ? 2 * rows.shared + rows.hidden : 0) +
         step.fp32_rows(mixture.num_experts) + step.shape.tokens * mixture.top_k * choice_bytes;
}

/// The router computes in fp32: its input, if it trains, that input's gradient, and the same rounded.
/// Gates are freed before it.
int64_t through_router(const StepContext& step, const Rows& rows) {
  const int64_t hidden = step.fp32_rows(step.arch.hidden_size);
  return rows.chosen + step.fp32_rows(step.arch.mixture.num_experts) +
         (step.trains_base ? hidden : 0) + hidden + rows.hidden - 2 * rows.inner;
}

/// The peaks on a GPU (src/layers/experts/device_mixture.cpp).
int64_t backward_on_gpu(const StepContext& step) {
  const spec::MixtureSpec& mixture = step.arch.mixture;
  const Rows rows(step);
  const int64_t matrix =  // a product in the compute dtype
      step.trains_base ? mixture.num_experts * mixture.intermediate_size * step.arch.hidden_size *
                             step.shape.element_bytes
                       : 0;
  // Gradients of answers and of gated products, and these again if the experts train.
  const int64_t through_down =
      rows.chosen + rows.inner + (step.trains_base ? rows.inner + matrix : 0);
  // Gradients of the rows, and if the experts train the rows again.
  const int64_t through_gates = rows.chosen + (step.trains_base ? rows.chosen + 2 * matrix : 0);
  // Gradients of the shared expert's answer, of its input, and of its inner values or of its input by
  // another way.
  const int64_t through_shared =
      rows.shared > 0
          ? rows.chosen + 3 * rows.hidden + std::max(rows.shared, rows.hidden) - 2 * rows.inner
          : 0;
  const int64_t sum = rows.chosen + (rows.shared > 0 ? 3 : 2) * rows.hidden - 2 * rows.inner;
  return rows.hidden +
         std::max({through_down, through_gates, through_router(step, rows), through_shared, sum,
                   norm_backward(step) - rows.hidden - 2 * rows.inner});
}

/// The peaks on a CPU (src/layers/experts/mixture.cpp).
int64_t backward_on_cpu(const StepContext& step) {
  const Rows rows(step);
  const int64_t fp32_inner = kFp32 * rows.inner / step.shape.element_bytes;
  // The gradient of a route's weight is a sum of products in fp32; beside them the gated product and
  // its gradient, and the outputs' gradients.
  const int64_t rounded = step.shape.element_bytes == kFp32 ? 1 : 3,
                through_weights = 2 * rows.inner + rows.chosen + rounded * fp32_inner;
  // Rows of each chosen expert: inputs, outputs' and inputs' gradients; of the inner width the
  // gradient, and those of gate and up side by side.
  return rows.hidden + std::max(through_weights, 3 * rows.inner + 3 * rows.chosen);
}

TrainingBytes training(const StepContext& step, int64_t /*layer*/) {
  const Rows rows(step);
  TrainingBytes bytes{.kept = kept(step)};
  if (step.shape.on_gpu) {
    // The normed input; gated products and answers, and their sum; that sum and the layer's output.
    bytes.in_forward =
        rows.hidden + std::max(rows.inner + rows.chosen + rows.hidden, 2 * rows.hidden);
    bytes.in_backward = backward_on_gpu(step);
  } else {
    bytes.in_backward = backward_on_cpu(step);
  }
  return bytes;
}

/// Gate and up; the gated product and its output. A CPU has gate and up side by side, too, and sums
/// outputs in fp32.
GenerationBytes generation(const StepContext& pass, int64_t /*layer*/) {
  const Rows rows(pass);
  if (pass.shape.on_gpu) return {.pass = 3 * rows.inner + rows.chosen};
  const int64_t ratio = kFp32 / pass.shape.element_bytes,
                sum = ratio * (rows.hidden + (ratio == 1 ? 1 : 2) * rows.chosen);
  return {.pass = 4 * rows.inner + rows.chosen + std::max(rows.inner, sum)};
}

}  // namespace

const BlockRow kRow{.name = "experts",
                    .title = "experts",
                    .training = training,
                    .generation = generation,
                    .process_bytes = int64_t{24} << 20};

}  // namespace sftrun::plan::experts
