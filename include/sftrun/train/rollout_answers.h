#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "sftrun/config/rewards.h"
#include "sftrun/observe/metrics.h"

/// Answers that a run writes itself (`train.rollouts`), with their judgement.
namespace sftrun::train {

/// An answer with its judgement.
struct RolloutAnswer {
  std::vector<int32_t> tokens;  ///< stop tokens included; not empty
  /// [tokens] 1: the model wrote it, 0: an environment did; empty: the model wrote all
  std::vector<uint8_t> is_own;
  std::vector<float> drawn_logps;  ///< of own tokens, in the distribution that they were drawn from
  /// Of the model's own distribution in nats, sum over own tokens; nullopt: who wrote it does not say.
  std::optional<double> entropy = 0.0;
  int64_t turns = 1;          ///< of the model
  bool is_cut_short = false;  ///< it reached rollouts.max_new_tokens
  std::optional<double>
      reward;  ///< nullopt: no function has a value, and the answer does not count
  std::vector<std::optional<double>> values;  ///< of the functions, in the order of rollouts.reward

  bool owns(size_t token) const { return is_own.empty() || is_own[token] != 0; }
  int64_t num_own() const;
};

/// null: there is no value.
nlohmann::ordered_json json_of(const std::optional<double>& value);
/// As other ranks and checkpoints get it.   @param has_logps with its `drawn_logps`
nlohmann::ordered_json to_json(const RolloutAnswer& answer, bool has_logps);
/// @throws nlohmann::json::exception for anything else than `to_json` gave
RolloutAnswer rollout_answer_of(const nlohmann::ordered_json& json);

/// The answers to some prompts, prompt by prompt, the same on every rank.
struct Rollout {
  int stop_exit_code = 0;  ///< not 0: the run was asked to stop meanwhile, and there are no answers
  std::vector<RolloutAnswer> answers;
  double seconds = 0, reward_seconds = 0;  ///< of both, and of judging alone
};

/// What answers are like; lengths in tokens that the model wrote.
struct AnswerStatistics {
  std::optional<double> mean_reward;  ///< of answers that have one; nullopt: none has
  std::optional<double> entropy;      ///< in nats, mean over tokens; nullopt: unknown of an answer
  double mean_turns = 1;              ///< of the model
  double mean_length = 0, min_length = 0, max_length = 0;
  std::optional<double> mean_terminated_length;  ///< of those that ended; nullopt: none did
  double clipped_ratio = 0;                      ///< share of those that reached their limit
};
/// @pre there are answers
AnswerStatistics statistics_of(std::span<const RolloutAnswer> answers);

/// Groups of `n` answers to a prompt.
struct GroupStatistics {
  double reward_std = 0;            ///< mean over groups
  double frac_reward_zero_std = 0;  ///< share of groups that teach nothing
};
GroupStatistics statistics_of_groups(std::span<const RolloutAnswer> answers, int64_t n);

/// Names are TRL's (trl/trainer/grpo_trainer.py).
observe::NamedValues metrics_of(const GroupStatistics& groups);
/// Of each function, mean and deviation over the answers for which it has a value, and of all
/// answers what the loss does not report by itself.   @param rewards of the configuration
observe::NamedValues metrics_of(const AnswerStatistics& all, std::span<const RolloutAnswer> answers,
                                const config::RewardSpecs& rewards);

}  // namespace sftrun::train
