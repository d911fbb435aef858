#include "blocks/block.h"

namespace sftrun::plan::embedding {
namespace {

/// The first layer keeps the output, its input. The gradient is added to the table in fp32.
TrainingBytes training(const StepContext& step, int64_t /*layer*/) {
  const int64_t hidden = step.arch.hidden_size;
  const bool is_rounded = step.shape.element_bytes != kFp32;
  return {.in_forward = step.rows(hidden),
          .in_backward = step.trains_embedding && is_rounded ? step.fp32_rows(hidden) : 0};
}

GenerationBytes generation(const StepContext& pass, int64_t /*layer*/) {
  return {.pass = pass.rows(pass.arch.hidden_size)};
}

}  // namespace

const BlockRow kRow{.name = "embedding", .training = training, .generation = generation};

}  // namespace sftrun::plan::embedding
