#pragma once

#include "sftrun/train/objective.h"

/// One function for each row of config::kObjectives that needs sums over documents, or scores of them. The weights are
/// the gradient of `loss_sum`, which has a graph.
namespace sftrun::train {

/// A function of DocumentSums, whose `policy`, `tail_policy` and `prompt_policy`, or `rows.policy`, require
/// gradients.
struct ObjectiveTerms {
  at::Tensor loss_sum;                   ///< scalar fp64
  std::vector<ObjectiveMetric> metrics;  ///< their graphs are not used
};

/// Direct preference optimization with the losses of `train.loss_type` (arXiv:2305.18290; length
/// desensitization: arXiv:2409.06411, f-divergences: arXiv:2309.16240).
ObjectiveTerms dpo(const DocumentSums& sums, const config::TrainConfig& config,
                   const BatchCounts& totals);
/// Contrastive preference optimization (arXiv:2401.08417): the losses without a reference model, and
/// the cross-entropy of the chosen answers.
ObjectiveTerms cpo(const DocumentSums& sums, const config::TrainConfig& config,
                   const BatchCounts& totals);
/// Simple preference optimization (arXiv:2405.14734).
ObjectiveTerms simpo(const DocumentSums& sums, const config::TrainConfig& config,
                     const BatchCounts& totals);
/// Odds ratio preference optimization (arXiv:2403.07691). As in its authors' code
/// (github.com/xfactlab/orpo), the cross-entropy is over prompt and answer of the chosen sequence.
ObjectiveTerms orpo(const DocumentSums& sums, const config::TrainConfig& config,
                    const BatchCounts& totals);
/// Kahneman-Tversky optimization (arXiv:2402.01306, equation 8, with the estimate of the KL
/// divergence over the global batch).
ObjectiveTerms kto(const DocumentSums& sums, const config::TrainConfig& config,
                   const BatchCounts& totals);

/// Group relative policy optimization with the losses of `train.loss_type` (grpo.cpp).
ObjectiveTerms grpo(const DocumentSums& sums, const config::TrainConfig& config,
                    const BatchCounts& totals);
/// Classes of which evaluations count each against each other (8 MB).
inline constexpr int64_t kMaxConfusion = 1000;

/// A function of DocumentScores, whose `scores` require gradients.
struct ScoreTerms {
  at::Tensor loss_sum;                   ///< scalar fp64
  std::vector<ObjectiveMetric> metrics;  ///< their graphs are not used
  at::Tensor confusion;                  ///< ScoreValue::confusion
};

/// Reward models (arXiv:2204.05862, section 2; margin: arXiv:2307.09288, equation 2; centering:
/// arXiv:2312.09244), in the form of TRL's RewardTrainer.
ScoreTerms reward(const DocumentScores& documents, const config::TrainConfig& config);
/// transformers' ForSequenceClassificationLoss.
ScoreTerms classify(const DocumentScores& documents, const config::TrainConfig& config);

}  // namespace sftrun::train
