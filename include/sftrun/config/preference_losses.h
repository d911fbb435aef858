#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/rows.h"

/// The losses of `train.loss_type`: one row each. The entries that compute them are in
/// src/train/objectives/preference_losses.cpp.
namespace sftrun::config {

enum class PreferenceLoss : uint8_t {
  kSigmoid,
  kHinge,
  kRobust,
  kIpo,
  kSigmoidNorm,
  kExoPair,
  kNcaPair,
  kBcoPair,
  kSppoHard,
  kApoZero,
  kApoDown,
  kDiscopop,
  kSft,
  kGrpo,
  kBnpo,
  kDrGrpo,
  kDapo,
  kCispo
};

struct PreferenceLossInfo {
  PreferenceLoss loss;
  std::string_view name;     ///< as in TRL
  std::string_view formula;  ///< for help texts; h is the difference of the two scores
  std::string_view paper;
  /// A function of the difference of the scores of the two answers, which f-divergences define, too.
  bool is_of_difference = false;
  /// Scores are means over labels, not sums.
  bool is_per_token = false;
  /// The mean over the labels of all chosen answers, and no sum over pairs.
  bool is_over_tokens = false;
  /// Of sampled answers and their advantages: a function of the ratios of single tokens, and never a
  /// part of a mixture.
  bool is_of_samples = false;
  /// Keys of `train` that only some losses read, and this one does.
  std::span<const std::string_view> settings = {};

  /// A function of the two answers of a pair.
  constexpr bool is_of_pairs() const { return !is_over_tokens && !is_of_samples; }
  constexpr bool reads(std::string_view key) const {
    for (const std::string_view setting : settings)
      if (setting == key) return true;
    return false;
  }
};

inline constexpr auto kSmoothedLoss = std::to_array<std::string_view>({"train.label_smoothing"});
inline constexpr auto kDiscopopSettings = std::to_array<std::string_view>({"train.discopop_tau"});
inline constexpr auto kClippedLoss =
    std::to_array<std::string_view>({"train.epsilon", "train.delta"});
inline constexpr auto kDrGrpoSettings = std::to_array<std::string_view>(
    {"train.epsilon", "train.delta", "train.max_completion_length"});

/// In the order of the enumerators. The papers' formulas in the form of
/// trl/trainer/dpo_trainer.py, except for label smoothing (docs/preference.md).
inline constexpr auto kPreferenceLosses = std::to_array<PreferenceLossInfo>({
    {.loss = PreferenceLoss::kSigmoid,
     .name = "sigmoid",
     .formula = "-log sigmoid(beta h)",
     .paper = "arXiv:2305.18290",
     .is_of_difference = true,
     .settings = kSmoothedLoss},
    {.loss = PreferenceLoss::kHinge,
     .name = "hinge",
     .formula = "max(0, 1 - beta h)",
     .paper = "arXiv:2309.06657",
     .is_of_difference = true},
    {.loss = PreferenceLoss::kRobust,
     .name = "robust",
     .formula = "(-(1 - e) log sigmoid(beta h) + e log sigmoid(-beta h)) / (1 - 2 e)",
     .paper = "arXiv:2403.00409",
     .is_of_difference = true,
     .settings = kSmoothedLoss},
    {.loss = PreferenceLoss::kIpo,
     .name = "ipo",
     .formula = "(h per token - 1 / (2 beta))^2",
     .paper = "arXiv:2310.12036",
     .is_of_difference = true,
     .is_per_token = true},
    {.loss = PreferenceLoss::kSigmoidNorm,
     .name = "sigmoid_norm",
     .formula = "-log sigmoid(beta (h per token))",
     .paper = "arXiv:2411.15124",
     .is_of_difference = true,
     .is_per_token = true,
     .settings = kSmoothedLoss},
    {.loss = PreferenceLoss::kExoPair,
     .name = "exo_pair",
     .formula = "KL of (sigmoid(beta h), sigmoid(-beta h)) to (1 - e, e)",
     .paper = "arXiv:2402.00856",
     .is_of_difference = true,
     .settings = kSmoothedLoss},
    {.loss = PreferenceLoss::kNcaPair,
     .name = "nca_pair",
     .formula = "-log sigmoid(c) - 0.5 log sigmoid(-c) - 0.5 log sigmoid(-r)",
     .paper = "arXiv:2402.05369"},
    {.loss = PreferenceLoss::kBcoPair,
     .name = "bco_pair",
     .formula = "-log sigmoid(c) - log sigmoid(-r)",
     .paper = "arXiv:2404.04656"},
    {.loss = PreferenceLoss::kSppoHard,
     .name = "sppo_hard",
     .formula = "(c / beta - 1 / (2 beta))^2 + (r / beta + 1 / (2 beta))^2",
     .paper = "arXiv:2405.00675"},
    {.loss = PreferenceLoss::kApoZero,
     .name = "apo_zero",
     .formula = "1 - sigmoid(c) + sigmoid(r)",
     .paper = "arXiv:2408.06266"},
    {.loss = PreferenceLoss::kApoDown,
     .name = "apo_down",
     .formula = "sigmoid(c) + 1 - sigmoid(c - r)",
     .paper = "arXiv:2408.06266"},
    {.loss = PreferenceLoss::kDiscopop,
     .name = "discopop",
     .formula = "-log sigmoid(beta h) (1 - s) + exp(-beta h) s with s = sigmoid(beta h / tau)",
     .paper = "arXiv:2406.08414",
     .is_of_difference = true,
     .settings = kDiscopopSettings},
    {.loss = PreferenceLoss::kSft,
     .name = "sft",
     .formula = "cross-entropy of the chosen answers",
     .paper = "arXiv:2411.10442",
     .is_of_difference = true,  // it has no scores
     .is_over_tokens = true},
    {.loss = PreferenceLoss::kGrpo,
     .name = "grpo",
     .formula = "mean over answers of the mean over tokens of -min(w A, clip(w) A)",
     .paper = "arXiv:2402.03300",
     .is_of_samples = true,
     .settings = kClippedLoss},
    {.loss = PreferenceLoss::kBnpo,
     .name = "bnpo",
     .formula = "as dapo (in TRL the mean is over the tokens of a micro-batch)",
     .paper = "arXiv:2506.02864",
     .is_of_samples = true,
     .settings = kClippedLoss},
    {.loss = PreferenceLoss::kDrGrpo,
     .name = "dr_grpo",
     .formula = "mean over answers of the sum over tokens of -min(w A, clip(w) A), divided by "
                "max_completion_length",
     .paper = "arXiv:2503.20783",
     .is_of_samples = true,
     .settings = kDrGrpoSettings},
    {.loss = PreferenceLoss::kDapo,
     .name = "dapo",
     .formula = "mean over all tokens of -min(w A, clip(w) A)",
     .paper = "arXiv:2503.14476",
     .is_of_samples = true,
     .settings = kClippedLoss},
    {.loss = PreferenceLoss::kCispo,
     .name = "cispo",
     .formula = "mean over all tokens of -min(w, epsilon_high) A log p, with no gradient of w",
     .paper = "arXiv:2506.13585",
     .is_of_samples = true},
});
static_assert(are_in_order(kPreferenceLosses, &PreferenceLossInfo::loss));

constexpr const PreferenceLossInfo& loss_info(PreferenceLoss loss) {
  return kPreferenceLosses[static_cast<size_t>(loss)];
}
/// The one with this name; null: there is none.
const PreferenceLossInfo* find_preference_loss(std::string_view name);

/// A loss and its factor in a sum.
struct LossShare {
  PreferenceLoss loss = PreferenceLoss::kSigmoid;
  double weight = 1;
  bool operator==(const LossShare&) const = default;
};

/// `train.loss_type`: a name, or a map of names to weights; empty: the objective's own.
struct LossMixture {
  std::vector<LossShare> shares;
  bool operator==(const LossMixture&) const = default;
};

/// "sigmoid", or "0.8 sigmoid + 0.2 sft".
std::string words_of(const LossMixture& losses);
/// "sigmoid: -log sigmoid(beta h). hinge: …", with the words that formulas use.
std::string loss_formulas();
/// The keys of all rows' settings, each once.
std::vector<std::string_view> loss_settings();
/// The names of the losses that read the setting: "sigmoid, robust".
std::string losses_that_read(std::string_view key);

/// The function of a log-ratio from which scores are made (`train.f_divergence`, arXiv:2309.16240).
enum class FDivergence : uint8_t { kReverseKl, kForwardKl, kJs, kAlpha };

}  // namespace sftrun::config
