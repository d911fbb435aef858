#include "sftrun/train/optimizer.h"

#include <algorithm>

#include "makers.h"
#include "sftrun/core/error.h"

namespace sftrun::train {
LearningRateRatios LearningRateRatios::from(const config::TrainConfig& config) {
  if (!config.loraplus_lr_ratio) return {};
  return {.loraplus_lr_ratio = config.loraplus_lr_ratio.value(),
          .loraplus_embedding_ratio = kLoraPlusEmbeddingRate / config.learning_rate.value()};
}

double LearningRateRatios::of(const layers::Parameter& parameter) const {
  if (parameter.role == TensorRole::kEmbeddingLora) return loraplus_embedding_ratio;
  const bool is_fast =
      parameter.role == TensorRole::kLoraB || parameter.shape_in_files().size() == 1;
  return is_fast ? loraplus_lr_ratio : 1;
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
