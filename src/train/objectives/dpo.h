#pragma once

#include "sftrun/train/objective.h"

namespace sftrun::train {

/// Direct preference optimization (arXiv:2305.18290, equation 7), the mean over pairs:
///     -log sigmoid(beta * ((c - c_ref) - (r - r_ref)))
/// c and r are the sums of log p over the chosen and the rejected answer, c_ref and r_ref those of
/// the reference model. Document 2i of a micro-batch is the chosen, 2i + 1 the rejected sequence of
/// pair i. Metrics as in TRL's DPOTrainer.
class DpoObjective final : public Objective {
 public:
  /// @param beta > 0
  explicit DpoObjective(double beta) : beta_(beta) {}

  int64_t count_terms(const BatchCounts& counts) const override { return counts.documents / 2; }
  bool needs_sums() const override { return true; }
  bool needs_reference() const override { return true; }
  int64_t documents_together() const override { return 2; }
  ObjectiveValue evaluate(const DocumentSums& sums) const override;

 private:
  double beta_;
};

}  // namespace sftrun::train
