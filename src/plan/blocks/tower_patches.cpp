#include <algorithm>

#include "blocks/tower_rows.h"

/// Patches to hidden states, with their positions (run_patches in src/layers/tower/tower_pass.cpp).
namespace sftrun::plan::tower_patches {
namespace {

/// Entries of the table of positions that a patch reads.
int64_t num_taps(const spec::VisionSpec& spec) {
  switch (spec.positions) {
    case spec::TowerPositions::kNone:
      return 0;
    case spec::TowerPositions::kTable:
      return 1;
    case spec::TowerPositions::kAxes:
      return 2;
    case spec::TowerPositions::kInterpolated:
      return 4;
  }
  return 0;
}

/// The rows of the table that a micro-batch reads; weighted ones in fp32, with their products.
int64_t position_rows(const TowerRows& rows) {
  const int64_t taps = num_taps(rows.spec()), hidden = rows.spec().hidden_size;
  const int64_t read = rows.bytes(rows.rows(), taps * hidden);
  if (rows.spec().positions != spec::TowerPositions::kInterpolated) return read;
  const int64_t wide = TowerRows::fp32_bytes(rows.rows(), taps * hidden);
  return read + rows.rounded(wide) + wide;
}

int64_t in_forward(const TowerRows& rows) {
  const spec::PatchEmbedding& patches = rows.spec().patches;
  const int64_t pixels = TowerRows::fp32_bytes(rows.patches(), patches.values());
  const int64_t centred = patches.is_centred ? pixels : 0,
                rounded = rows.rounded(rows.bytes(rows.patches(), patches.values()));
  const int64_t reading = centred + std::max(centred, rounded + rows.hidden());
  // Hidden states before and after their positions, or before and after a norm.
  return std::max(reading, centred + 2 * rows.hidden() + position_rows(rows));
}

TrainingBytes training(const StepContext& step, int64_t /*layer*/) {
  const TowerRows rows(step);
  const spec::PatchEmbedding& patches = rows.spec().patches;
  const int64_t pixels = rows.bytes(rows.patches(), patches.values());
  const bool is_copied = patches.is_centred || step.shape.element_bytes != kFp32;
  TrainingBytes bytes{.in_forward = in_forward(rows)};
  if (rows.trains(patches.module) && is_copied) bytes.kept += pixels;
  if (rows.spec().pre_norm.exists())
    bytes.kept += rows.hidden() + TowerRows::fp32_bytes(rows.rows(), 2);
  const spec::TowerLinear kernel{.in_features = patches.values(),
                                 .out_features = rows.spec().hidden_size};
  bytes.in_backward = rows.hidden() + std::max(rows.matrix_gradient(patches.module, kernel),
                                               rows.hidden() + position_rows(rows));
  return bytes;
}

GenerationBytes generation(const StepContext& pass, int64_t /*layer*/) {
  return {.pass = in_forward(TowerRows(pass))};
}

}  // namespace

const BlockRow kRow{.name = "tower_patches", .training = training, .generation = generation};

}  // namespace sftrun::plan::tower_patches
