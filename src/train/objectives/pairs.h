#pragma once

#include "sftrun/train/objective.h"

/// Objectives on pairs of a chosen and a rejected answer. Document 2i of a micro-batch is the chosen,
/// 2i + 1 the rejected sequence of pair i. All values are [pairs] fp64.
namespace sftrun::train {

struct OfPair {
  at::Tensor chosen, rejected;
  at::Tensor difference() const;
};

/// Values of documents [2 * pairs] by pairs.
OfPair by_pair(const at::Tensor& documents);
/// Values per label; an answer without labels has the sum 0, and is divided by 1.
OfPair per_label(const OfPair& sums, const OfPair& lengths);

/// What the loss of a pair is a function of.
struct PairInputs {
  OfPair log_ratios;  ///< log p minus that of the reference model; without one log p
  OfPair scores;      ///< of the log-ratios, by `train.f_divergence`
  OfPair lengths;     ///< numbers of labels
  double beta = 1, smoothing = 0, discopop_tau = 1;
};

/// The loss of each pair, with a graph if the inputs have one.
/// @pre the row's `is_of_pairs`
at::Tensor pair_losses(config::PreferenceLoss loss, const PairInputs& inputs);

/// -log sigmoid(x), of which a share of labels is wrong: (1 - e) and e for -log sigmoid(-x)
/// (conservative DPO, https://ericmitchell.ai/cdpo.pdf).
at::Tensor smoothed_log_sigmoid_loss(const at::Tensor& x, double smoothing);

/// Sum over the pairs that have labels: a pair that lost them (data::make_batch) is no term.
at::Tensor sum_over_pairs(const at::Tensor& losses, const DocumentSums& sums);

/// The mean cross-entropy of the labels of all chosen answers, as a part of a sum over pairs that is
/// divided by the number of pairs: what this micro-batch adds to it.
at::Tensor chosen_cross_entropy(const DocumentSums& sums, const BatchCounts& totals);

/// "rewards/…" and "logps/…".
std::vector<ObjectiveMetric> pair_metrics(const OfPair& rewards, const OfPair& log_p);

}  // namespace sftrun::train
