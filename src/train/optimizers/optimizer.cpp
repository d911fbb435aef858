#include "sftrun/train/optimizer.h"

#include <algorithm>

#include "makers.h"
#include "sftrun/core/error.h"

namespace sftrun::train {
LearningRateRatios LearningRateRatios::from(const config::TrainConfig& config) {
  LearningRateRatios ratios;
  if (config.loraplus_lr_ratio) {
    ratios.loraplus_lr_ratio = config.loraplus_lr_ratio.value();
    ratios.loraplus_embedding_ratio = kLoraPlusEmbeddingRate / config.learning_rate.value();
  }
  for (const ModelPart part : kModelParts)
    if (const auto rate = config.part_learning_rates[part])
      ratios.of_part[part] = *rate / config.learning_rate.value();
  return ratios;
}

double LearningRateRatios::of(const layers::Parameter& parameter) const {
  if (parameter.role == TensorRole::kEmbeddingLora)
    return loraplus_embedding_ratio * of_part[parameter.part];
  const bool is_fast =
      parameter.role == TensorRole::kLoraB || parameter.shape_in_files().size() == 1;
  return (is_fast ? loraplus_lr_ratio : 1) * of_part[parameter.part];
}

int64_t StateTensor::own_numel() const {
  return parameter != nullptr ? parameter->numel : c10::multiply_integers(shape);
}

void require_whole_parameters(const layers::OwnedValues& values, const char* optimizer) {
  for (const layers::OwnedValues::Piece& piece : values.pieces) {
    if (piece.is_whole() || piece.numel == 0) continue;
    throw ConfigError(fmt::format("{} computes each update from the whole matrix, and the strategy "
                                  "divides {} over the ranks",
                                  optimizer, piece.parameter->name),
                      "train.optimizer",
                      "use adamw, or a parallel.strategy that keeps parameters whole");
  }
}

void Optimizer::step(double, const at::Tensor&) {
  invariant_failed(__FILE__, __LINE__, "an optimizer that reads the gate");
}

std::unique_ptr<Optimizer> make_optimizer(const layers::OwnedValues& values,
                                          const config::TrainConfig& config) {
  return kOptimizerMakers[static_cast<size_t>(config.optimizer)](values, config);
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace sftrun::train
