#include <ATen/ATen.h>

#include <array>
#include <cmath>

#include "pairs.h"
#include "sftrun/core/error.h"

/// The formulas of config::kPreferenceLosses, whose rows name their papers.
namespace sftrun::train {
namespace {

/// beta times the difference of the scores.
at::Tensor margins(const PairInputs& in) {
  return in.beta * in.scores.difference();
}
OfPair rewards_of(const PairInputs& in) {
  return {in.beta * in.log_ratios.chosen, in.beta * in.log_ratios.rejected};
}

at::Tensor sigmoid_loss(const PairInputs& in) {
  return smoothed_log_sigmoid_loss(margins(in), in.smoothing);
}
at::Tensor hinge_loss(const PairInputs& in) {
  return at::relu(1 - margins(in));
}
at::Tensor robust_loss(const PairInputs& in) {
  const at::Tensor x = margins(in);
  const at::Tensor clean = -(1 - in.smoothing) * at::log_sigmoid(x),
                   flipped = -in.smoothing * at::log_sigmoid(-x);
  return (clean - flipped) / (1 - 2 * in.smoothing);
}
at::Tensor ipo_loss(const PairInputs& in) {
  return (per_label(in.scores, in.lengths).difference() - 1 / (2 * in.beta)).square();
}
at::Tensor sigmoid_norm_loss(const PairInputs& in) {
  return smoothed_log_sigmoid_loss(in.beta * per_label(in.scores, in.lengths).difference(),
                                   in.smoothing);
}
at::Tensor exo_pair_loss(const PairInputs& in) {
  const at::Tensor x = margins(in);
  return at::sigmoid(x) * (at::log_sigmoid(x) - std::log1p(-in.smoothing)) +
         at::sigmoid(-x) * (at::log_sigmoid(-x) - std::log(in.smoothing));
}
at::Tensor nca_pair_loss(const PairInputs& in) {
  const OfPair rewards = rewards_of(in);
  return -at::log_sigmoid(rewards.chosen) - 0.5 * at::log_sigmoid(-rewards.chosen) -
         0.5 * at::log_sigmoid(-rewards.rejected);
}
at::Tensor bco_pair_loss(const PairInputs& in) {
  const OfPair rewards = rewards_of(in);
  return -at::log_sigmoid(rewards.chosen) - at::log_sigmoid(-rewards.rejected);
}
at::Tensor sppo_hard_loss(const PairInputs& in) {
  const double half = 0.5 / in.beta;
  return (in.log_ratios.chosen - half).square() + (in.log_ratios.rejected + half).square();
}
at::Tensor apo_zero_loss(const PairInputs& in) {
  const OfPair rewards = rewards_of(in);
  return at::sigmoid(-rewards.chosen) + at::sigmoid(rewards.rejected);
}
at::Tensor apo_down_loss(const PairInputs& in) {
  const OfPair rewards = rewards_of(in);
  return at::sigmoid(rewards.chosen) + at::sigmoid(-rewards.difference());
}
at::Tensor discopop_loss(const PairInputs& in) {
  const at::Tensor x = margins(in);
  const at::Tensor modulation = at::sigmoid(x / in.discopop_tau);
  // exp(-x) * sigmoid(x / tau), where exp(-x) alone may be infinite.
  const at::Tensor exponential = at::exp(at::log_sigmoid(x / in.discopop_tau) - x);
  return -at::log_sigmoid(x) * (1 - modulation) + exponential;
}

using LossOfPairs = at::Tensor (*)(const PairInputs& in);
constexpr std::array<LossOfPairs, config::kPreferenceLosses.size()> kLosses =
    std::to_array<LossOfPairs>({sigmoid_loss, hinge_loss, robust_loss, ipo_loss, sigmoid_norm_loss,
                                exo_pair_loss, nca_pair_loss, bco_pair_loss, sppo_hard_loss,
                                apo_zero_loss, apo_down_loss, discopop_loss, nullptr, nullptr,
                                nullptr, nullptr, nullptr, nullptr});
static_assert([] {
  for (size_t i = 0; i < kLosses.size(); ++i)
    if (config::kPreferenceLosses[i].is_of_pairs() != (kLosses[i] != nullptr)) return false;
  return true;
}());

}  // namespace

at::Tensor smoothed_log_sigmoid_loss(const at::Tensor& x, double smoothing) {
  const at::Tensor loss = -at::log_sigmoid(x);
  return smoothing == 0 ? loss : (1 - smoothing) * loss - smoothing * at::log_sigmoid(-x);
}

at::Tensor pair_losses(config::PreferenceLoss loss, const PairInputs& inputs) {
  const LossOfPairs of_pairs = kLosses[static_cast<size_t>(loss)];
  SFTRUN_CHECK(of_pairs != nullptr);
  return of_pairs(inputs);
}

}  // namespace sftrun::train
