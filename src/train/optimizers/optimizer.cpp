#include "sftrun/train/optimizer.h"

#include <algorithm>

#include "adafactor.h"
#include "lion.h"
#include "muon.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/train/adamw.h"
#include "sgd.h"

namespace sftrun::train {
namespace {

LearningRateRatios rates_of(const config::TrainConfig& config) {
  if (!config.loraplus_lr_ratio) return {};
  return {.loraplus_lr_ratio = config.loraplus_lr_ratio.value(),
          .loraplus_embedding_ratio = kLoraPlusEmbeddingRate / config.learning_rate.value()};
}

/// On a CPU all moments are in host memory anyway.
AdamWConfig adamw_config(const config::TrainConfig& config, at::Device device) {
  return {.beta1 = config.adam_beta1,
          .beta2 = config.adam_beta2,
          .epsilon = config.adam_epsilon,
          .weight_decay = config.weight_decay,
          .is_8bit = config::is_8bit(config.optimizer),
          .rates = rates_of(config),
          .moments_on_host = config::is_paged(config.optimizer) && !device.is_cpu()};
}

}  // namespace

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
  using config::Optimizer;
  const AdamWConfig adamw = adamw_config(config, values.flat.master.device());
  switch (config.optimizer) {
    case Optimizer::kAdamW:
    case Optimizer::kAdamW8bit:
    case Optimizer::kPagedAdamW:
    case Optimizer::kPagedAdamW8bit:
      return std::make_unique<AdamW>(values, adamw);
    case Optimizer::kSgd:
      return std::make_unique<Sgd>(values, SgdConfig{.momentum = config.resolved_momentum(),
                                                     .nesterov = config.resolved_nesterov(),
                                                     .weight_decay = config.weight_decay,
                                                     .rates = adamw.rates});
    case Optimizer::kLion:
      return std::make_unique<Lion>(values, LionConfig{.beta1 = config.adam_beta1,
                                                       .beta2 = config.adam_beta2,
                                                       .weight_decay = config.weight_decay,
                                                       .rates = adamw.rates});
    case Optimizer::kAdafactor:
      return std::make_unique<Adafactor>(
          values, AdafactorConfig{.weight_decay = config.weight_decay, .rates = adamw.rates});
    case Optimizer::kMuon:
      return std::make_unique<Muon>(values, MuonConfig{.momentum = config.resolved_momentum(),
                                                       .nesterov = config.resolved_nesterov(),
                                                       .weight_decay = config.weight_decay,
                                                       .rate = config.muon_lr,
                                                       .others = adamw});
  }
  invariant_failed(__FILE__, __LINE__, "a known optimizer");
}

double clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace sftrun::train
