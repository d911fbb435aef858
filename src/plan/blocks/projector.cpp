#include <algorithm>

#include "blocks/block.h"

/// A projector of features (src/layers/tower/projector.cpp); `layer` is its number.
namespace sftrun::plan::projector {
namespace {

/// Of the projector's inner rows, its output, and the gradient of its larger matrix.
struct ProjectorRows {
  int64_t inner, output, gradient;
};
ProjectorRows rows_of(const StepContext& step, int64_t number) {
  constexpr int64_t kFp32Bytes = 4;
  const FeatureProjector& projector = step.arch.projectors[static_cast<size_t>(number)];
  const int64_t width = step.arch.hidden_size;
  return {step.rows(projector.hidden), step.rows(width),
          kFp32Bytes * projector.hidden * std::max(projector.input_width, width)};
}

bool trains(const StepContext& step) {
  return step.shape.tower.parts.projector;
}

/// The input of the first linear is the micro-batch's, and counted there.
TrainingBytes training(const StepContext& step, int64_t number) {
  const ProjectorRows rows = rows_of(step, number);
  TrainingBytes bytes{.in_forward = 2 * rows.inner + rows.output};
  if (!trains(step)) return bytes;
  const bool keeps = step.config.train.gradient_checkpointing != config::Checkpointing::kLayer;
  const int64_t graph = 2 * rows.inner;
  if (keeps) bytes.kept = graph;
  // The activation goes when the gradient behind it is there.
  bytes.in_backward = rows.output + std::max(rows.inner, rows.gradient) + (keeps ? 0 : graph);
  return bytes;
}

GenerationBytes generation(const StepContext& pass, int64_t number) {
  return {.pass = training(pass, number).in_forward};
}

}  // namespace

const BlockRow kRow{.name = "projector", .training = training, .generation = generation};

}  // namespace sftrun::plan::projector
