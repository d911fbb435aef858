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

/// [rows, taps, hidden]
int64_t read_positions(const TowerRows& rows) {
  return rows.bytes(rows.rows(), num_taps(rows.spec()) * rows.spec().hidden_size);
}
int64_t wide_positions(const TowerRows& rows) {
  return TowerRows::fp32_bytes(rows.rows(), num_taps(rows.spec()) * rows.spec().hidden_size);
}

/// The rows of the table that a micro-batch reads, and their sum. Weighted ones are in fp32, with their products.
int64_t summed_positions(const TowerRows& rows) {
  const int64_t read = read_positions(rows), hidden = rows.hidden();
  switch (rows.spec().positions) {
    case spec::TowerPositions::kNone:
      return hidden;  // after a norm
    case spec::TowerPositions::kTable:
      return read + hidden;
    case spec::TowerPositions::kAxes:
      return read + 2 * hidden;
    case spec::TowerPositions::kInterpolated:
      return read + rows.rounded(wide_positions(rows)) + wide_positions(rows) +
             TowerRows::fp32_bytes(rows.rows(), rows.spec().hidden_size);
  }
  return 0;
}

int64_t in_forward(const TowerRows& rows) {
  const spec::PatchEmbedding& patches = rows.spec().patches;
  const int64_t pixels = TowerRows::fp32_bytes(rows.patches(), patches.values());
  const int64_t centred = patches.is_centred ? pixels : 0,
                rounded = rows.rounded(rows.bytes(rows.patches(), patches.values()));
  const int64_t reading = centred + std::max(centred, rounded + rows.hidden());
  // Beside rows with class tokens those without stay.
  const int64_t without =
      rows.spec().class_token.empty() ? 0 : rows.bytes(rows.patches(), rows.spec().hidden_size);
  return std::max(reading, centred + without + rows.hidden() + summed_positions(rows));
}

/// The gradient of the table: a matrix, summed in fp32.
int64_t table_gradient(const TowerRows& rows) {
  const spec::VisionSpec& spec = rows.spec();
  if (!rows.trains(spec.position_table)) return 0;
  const bool has_axes = spec.positions == spec::TowerPositions::kAxes;
  const int64_t table =
      TowerRows::fp32_bytes((has_axes ? 2 : 1) * spec.position_rows, spec.hidden_size);
  switch (spec.positions) {
    case spec::TowerPositions::kNone:
      return 0;
    case spec::TowerPositions::kTable:
      return 2 * table;
    case spec::TowerPositions::kAxes:
      return std::max(2 * table, read_positions(rows) + table);
    case spec::TowerPositions::kInterpolated:
      return wide_positions(rows) + rows.rounded(read_positions(rows)) + 2 * table;
  }
  return 0;
}

TrainingBytes training(const StepContext& step, int64_t /*layer*/) {
  const TowerRows rows(step);
  const spec::PatchEmbedding& patches = rows.spec().patches;
  const spec::TowerNorm& norm = rows.spec().pre_norm;
  const int64_t pixels = rows.bytes(rows.patches(), patches.values());
  const bool is_copied = patches.is_centred || step.shape.element_bytes != kFp32;
  TrainingBytes bytes{.in_forward = in_forward(rows)};
  if (rows.trains(patches.module) && is_copied) bytes.kept += pixels;
  bytes.kept += rows.low_rank(patches.module, rows.patches());
  if (norm.exists()) bytes.kept += rows.hidden() + TowerRows::fp32_bytes(rows.rows(), 2);
  const spec::TowerLinear kernel{.in_features = patches.values(),
                                 .out_features = rows.spec().hidden_size,
                                 .bias = patches.bias};
  // Squares in the order of windows go back to that of the input.
  const int64_t reordered = rows.spec().window_side > 0 ? rows.hidden() : 0;
  const int64_t of_norm =
      norm.exists() ? std::max(rows.hidden(), rows.norm_gradient(norm, rows.rows())) : 0;
  bytes.in_backward =
      rows.hidden() + std::max({rows.matrix_gradient(patches.module, kernel, rows.patches()),
                                table_gradient(rows), of_norm, reordered});
  return bytes;
}

GenerationBytes generation(const StepContext& pass, int64_t /*layer*/) {
  return {.pass = in_forward(TowerRows(pass))};
}

}  // namespace

const BlockRow kRow{.name = "tower_patches", .training = training, .generation = generation};

}  // namespace sftrun::plan::tower_patches
