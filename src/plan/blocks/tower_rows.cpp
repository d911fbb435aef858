#include "blocks/tower_rows.h"

#include <algorithm>
#include <ranges>

namespace sftrun::plan {

TowerRows::TowerRows(const StepContext& step)
    : step_(step),
      spec_(*step.arch.vision),
      class_tokens_(spec_.class_token.empty() ? 0 : step.shape.images.tiles) {}

int64_t TowerRows::features() const {
  const int64_t square = spec_.merger.side * spec_.merger.side;
  return (spec_.drops_class_token ? patches() : rows()) / square;
}

bool TowerRows::trains(const std::string& module) const {
  return step_.tower_training.trains(module + ".weight") || step_.tower_training.trains(module) ||
         step_.tower_training.rank(module) > 0;
}

int64_t TowerRows::matrix_gradient(const std::string& module, const spec::TowerLinear& linear,
                                   int64_t count) const {
  if (!step_.tower_training.trains(module + ".weight") && !step_.tower_training.trains(module))
    return 0;
  const int64_t element = step_.shape.element_bytes,
                values = linear.in_features * linear.out_features, matrix = kFp32 * values;
  if (step_.shape.on_gpu) return matrix;
  const int64_t outputs = fp32_bytes(count, linear.out_features);
  if (element == kFp32) return matrix + outputs;
  return std::max(matrix + element * values, linear.bias ? outputs : 0);
}

int64_t TowerRows::norm_gradient(const spec::TowerNorm& norm, int64_t count) const {
  const bool has_sums = norm.exists() && norm.kind != spec::TowerNormKind::kLayerNorm;
  if (!has_sums || !step_.tower_training.trains(norm.module + ".weight")) return 0;
  const int64_t wide = fp32_bytes(count, norm.size);
  return wide + (step_.shape.on_gpu ? 0 : rounded(2 * wide));
}

int64_t TowerRows::unpacked(const spec::TowerLinear& linear) const {
  const config::TuningConfig& tuning = step_.config.tuning;
  const bool is_packed = tuning.quantises_base() || tuning.keeps_blocks();
  if (!step_.shape.on_gpu || !tuning.trains_adapter() || !is_packed) return 0;
  return linear.in_features * linear.out_features * step_.shape.element_bytes;
}

void TowerChain::apply(int64_t output_bytes, bool reads_input, int64_t beside, int64_t kept) {
  if (reads_input && !is_kept_) kept += current_;
  operations_.push_back({.input = current_, .beside = beside, .kept = kept});
  kept_ += kept;
  current_ = output_bytes, is_kept_ = false;
}

int64_t TowerChain::in_backward() const {
  int64_t largest = 0, freed = 0, gradient = 0;  // of an operation's output; the last one's stays
  for (const Operation& operation : std::views::reverse(operations_)) {
    largest = std::max(largest, gradient + std::max(operation.input, operation.beside) - freed);
    freed += operation.kept;
    gradient = operation.input;
  }
  return largest;
}

}  // namespace sftrun::plan
