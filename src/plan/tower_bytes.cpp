#include "tower_bytes.h"

#include <algorithm>

#include "blocks/tower_rows.h"

namespace sftrun::plan {
namespace {

constexpr int64_t kIndex = 8;  // bytes

/// Patches in fp32, the order of windows, and the places of patches: rows of the table of positions with their weights, or angles.
int64_t input_bytes(const TowerRows& rows) {
  const spec::VisionSpec& spec = rows.spec();
  int64_t bytes = TowerRows::fp32_bytes(rows.patches(), spec.patches.values());
  if (spec.window_side > 0)
    bytes += kIndex * rows.patches() / (spec.merger.side * spec.merger.side);
  switch (spec.positions) {
    case spec::TowerPositions::kNone:
      break;
    case spec::TowerPositions::kTable:
      bytes += kIndex * rows.rows();
      break;
    case spec::TowerPositions::kAxes:
      bytes += 2 * kIndex * rows.patches();
      break;
    case spec::TowerPositions::kInterpolated:
      bytes += 4 * (kIndex + kFp32) * rows.patches();
      break;
  }
  if (spec.rope != spec::TowerRope::kNone)
    bytes += 2 * TowerRows::fp32_bytes(rows.rows(), spec.head_dim);
  return bytes;
}

int64_t num_outputs(const spec::VisionSpec& spec) {
  return 1 + static_cast<int64_t>(spec.deepstack.size());
}

/// One unit of the tower in a step.
struct TowerUnitBytes {
  int64_t kept = 0;         ///< with its input
  int64_t in_forward = 0;   ///< with its input, and with what it keeps
  int64_t in_backward = 0;  ///< beside what it kept; 0: it has no backward pass
};

TowerUnitBytes unit_of_tower(const StepContext& step, const TowerRows& rows, int64_t unit) {
  const bool is_first = unit == 0, is_last = unit == rows.spec().num_used_layers + 1;
  const BlockRow& row = block_row(is_first  ? "tower_patches"
                                  : is_last ? "tower_mergers"
                                            : "tower_layer");
  const TrainingBytes own = row.training(step, is_first || is_last ? -1 : unit - 1);
  const int64_t input = is_first ? 0 : rows.hidden();
  TowerUnitBytes bytes{.in_forward = input + own.in_forward};
  // Outputs that DeepStack's mergers read wait for them, and their gradients for the layers.
  int64_t waiting = 0;
  for (const int64_t layer : rows.spec().deepstack_layers)
    if (layer + 1 < unit) waiting += rows.hidden();
  bytes.in_forward += waiting;
  if (!step.tower_training.at_or_below(unit)) return bytes;
  const int64_t output =
      is_last ? num_outputs(rows.spec()) * rows.bytes(rows.features(), step.arch.hidden_size)
              : rows.hidden();
  const bool again = step.config.train.gradient_checkpointing == config::Checkpointing::kLayer;
  bytes.kept = input + (again ? 0 : own.kept);
  bytes.in_backward =
      again ? std::max(own.kept + own.in_backward, own.in_forward) + output : own.in_backward;
  if (!again) bytes.in_forward = std::max(bytes.in_forward, input + own.kept + output);
  if (!is_last) bytes.in_backward += waiting;
  return bytes;
}

}  // namespace

TowerBytes tower_bytes(const StepContext& step, int64_t kept_by_text, bool frees) {
  TowerBytes bytes;
  if (!step.shape.tower.is_loaded || step.shape.images.patches == 0) return bytes;
  const TowerRows rows(step);
  const int64_t features =
      num_outputs(rows.spec()) * rows.bytes(rows.features(), step.arch.hidden_size);
  bytes.images = input_bytes(rows) + features;
  int64_t kept_later = kept_by_text;  // by units after this one
  for (int64_t unit = rows.spec().num_used_layers + 1; unit >= 0; --unit) {
    const TowerUnitBytes of = unit_of_tower(step, rows, unit);
    const int64_t not_there = frees ? kept_later : 0;
    bytes.of_unit =
        std::max({bytes.of_unit, of.in_forward - of.kept - not_there, of.in_backward - not_there});
    bytes.kept += of.kept;
    kept_later += of.kept;
  }
  return bytes;
}

}  // namespace sftrun::plan
