#include "sftrun/train/rollout_faults.h"

#include <fmt/format.h>

namespace sftrun::train {
namespace {

/// A model that is this sure of every token writes the same answer again and again.
constexpr double kSmallEntropy = 0.02, kSmallShare = 0.1;

}  // namespace

std::vector<std::string> RolloutFaults::add(const AnswerStatistics& answers,
                                            const GroupStatistics& groups) {
  std::vector<std::string> warnings;
  if (!first_entropy_) first_entropy_ = answers.entropy;
  if (silent_.add(groups.frac_reward_zero_std == 1))
    warnings.push_back(fmt::format(
        "the answers of every group had the same reward for {} steps (mean {:.4g}), from which "
        "nothing is learnt: the prompts are too hard or too easy for the model, or the rewards do "
        "not tell its answers apart; look at rollouts/ in the run directory",
        LastingFault::kSteps, answers.mean_reward.value_or(0)));
  if (cut_short_.add(answers.clipped_ratio == 1))
    warnings.push_back(fmt::format(
        "every answer was cut short for {} steps: raise train.rollouts.max_new_tokens, or see "
        "whether the model ends its answers at all (rollouts/ in the run directory)",
        LastingFault::kSteps));
  const bool is_sure = answers.entropy && *answers.entropy < kSmallEntropy &&
                       *answers.entropy < kSmallShare * *first_entropy_;
  if (collapsed_.add(is_sure))
    warnings.push_back(fmt::format(
        "the entropy of the model has fallen from {:.3g} to {:.3g}: its answers to a prompt are "
        "nearly the same, so that little is learnt; lower train.learning_rate, or set train.beta "
        "above 0",
        *first_entropy_, *answers.entropy));
  return warnings;
}

}  // namespace sftrun::train
