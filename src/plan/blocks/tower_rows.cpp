#include "blocks/tower_rows.h"

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

int64_t TowerRows::matrix_gradient(const std::string& module,
                                   const spec::TowerLinear& linear) const {
  if (!step_.tower_training.trains(module + ".weight") && !step_.tower_training.trains(module))
    return 0;
  const int64_t element = step_.shape.element_bytes;
  const bool is_copied = !step_.shape.on_gpu && element != kFp32;
  return linear.in_features * linear.out_features * (kFp32 + (is_copied ? element : 0));
}

int64_t TowerRows::unpacked(const spec::TowerLinear& linear) const {
  const config::TuningConfig& tuning = step_.config.tuning;
  const bool is_packed = tuning.quantises_base() || tuning.keeps_blocks();
  if (!step_.shape.on_gpu || !tuning.trains_adapter() || !is_packed) return 0;
  return linear.in_features * linear.out_features * step_.shape.element_bytes;
}

}  // namespace sftrun::plan
