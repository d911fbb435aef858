#pragma once

#include "sftrun/train/objective.h"

namespace sftrun::train {

/// Supervised fine-tuning: cross-entropy of the labelled tokens, the mean over those of the global
/// batch. The weight of each row is 1.
class SftObjective final : public Objective {
 public:
  int64_t count_terms(const BatchCounts& counts) const override { return counts.label_tokens; }
  bool needs_sums() const override { return false; }
  bool needs_reference() const override { return false; }
  int64_t documents_together() const override { return 1; }
  ObjectiveValue evaluate(const DocumentSums& sums) const override;
};

}  // namespace sftrun::train
