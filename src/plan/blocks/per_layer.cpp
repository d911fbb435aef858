#include "blocks/block.h"

/// Per-layer inputs (Gemma 3n, Gemma 4): small beside the layer's other blocks.
namespace sftrun::plan::per_layer {
namespace {

TrainingBytes training(const StepContext& /*step*/, int64_t /*layer*/) {
  return {};
}

GenerationBytes generation(const StepContext& /*pass*/, int64_t /*layer*/) {
  return {};
}

}  // namespace

const BlockRow kRow{.name = "per_layer", .training = training, .generation = generation};

}  // namespace sftrun::plan::per_layer
