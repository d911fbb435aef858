#pragma once

#include <functional>

#include "sftrun/train/objective.h"

namespace sftrun::train {

/// A loss of pairs as a function of their margins, and its derivative.
struct PairLoss {
  at::Tensor losses;  ///< [pairs] fp64
  at::Tensor slopes;  ///< [pairs] fp64: d losses / d margins
};

/// The reward of an answer: beta * (log p - log p of the reference model).
struct RewardScale {
  double beta = 1;
  bool per_token = false;  ///< divided by the answer's number of labels
};

/// An objective whose loss depends on the margin of each pair, the difference of its rewards:
///     beta * ((c - c_ref) - (r - r_ref))
/// c and r are the sums of log p over the chosen and the rejected answer, c_ref and r_ref those of
/// the reference model, 0 without one. Document 2i of a micro-batch is the chosen, 2i + 1 the
/// rejected sequence of pair i. Metrics as in TRL's DPOTrainer (`config::kPairMetrics`).
/// @param loss of the margins [pairs] fp64
ObjectiveValue value_of_pairs(const DocumentSums& sums, const RewardScale& scale,
                              const std::function<PairLoss(const at::Tensor& margins)>& loss);

}  // namespace sftrun::train
