#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sftrun/core/model_part.h"

/// Which parts of a vision-language model train, and how: `tuning.train_parts` and
/// `train.part_learning_rates`.
namespace sftrun::config {

enum class PartTraining : uint8_t {
  kFrozen,
  kByMode,  ///< as tuning.mode says
  kLora,    ///< beside parts that train in full
  kFull,    ///< likewise
};

/// `tuning.train_parts`: a list of parts, or a map of parts to lora and full.
struct TrainParts {
  ByPart<PartTraining> training = {{PartTraining::kByMode}};  ///< the language part

  static TrainParts none() { return {.training = {}}; }
  bool trains(ModelPart part) const { return training[part] != PartTraining::kFrozen; }
  TrainedParts trained() const;
  /// Whether a part trains so.
  bool any(PartTraining wanted) const;
  std::string list() const;  ///< "[language, vision]"
  bool operator==(const TrainParts&) const = default;
};

/// Peak learning rates of parts that do not have `train.learning_rate`.
using PartRates = ByPart<std::optional<double>>;

}  // namespace sftrun::config
