#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sftrun/observe/metrics.h"
#include "sftrun/train/batches.h"
#include "sftrun/train/rollout_faults.h"

/// Batches of answers that the run writes between its steps (`train.rollouts`).
namespace sftrun::train {

/// An answer with its judgement.
struct RolloutAnswer {
  std::vector<int32_t> tokens;  ///< stop tokens included; not empty
  /// [tokens] 1: the model wrote it, 0: an environment did; empty: the model wrote all
  std::vector<uint8_t> is_own;
  std::vector<float> drawn_logps;  ///< of own tokens, in the distribution that they were drawn from
  double entropy = 0;              ///< of the model's own distribution in nats, sum over own tokens
  int64_t turns = 1;               ///< of the model
  bool is_cut_short = false;       ///< it reached rollouts.max_new_tokens
  std::optional<double>
      reward;  ///< nullopt: no function has a value, and the answer does not count
  std::vector<std::optional<double>> values;  ///< of the functions, in the order of rollouts.reward

  bool owns(size_t token) const { return is_own.empty() || is_own[token] != 0; }
  int64_t num_own() const;
};

/// The answers to some prompts, prompt by prompt, the same on every rank.
struct Rollout {
  int stop_exit_code = 0;  ///< not 0: the run was asked to stop meanwhile, and there are no answers
  std::vector<RolloutAnswer> answers;
  double seconds = 0, reward_seconds = 0;  ///< of both, and of judging alone
};

/// Means over answers, by TRL's names (trl/trainer/grpo_trainer.py): rewards of each function,
/// lengths, entropy.   @param rewards of the configuration
observe::NamedValues answer_metrics(std::span<const RolloutAnswer> answers,
                                    const config::RewardSpecs& rewards);
/// Means over groups of `n` answers: `reward_std` and `frac_reward_zero_std`, the share of groups that
/// teach nothing.
observe::NamedValues group_metrics(std::span<const RolloutAnswer> answers, int64_t n);

/// A step has train.global_batch_size answers, `rollouts.n` to each of its prompts. The prompts of a
/// step depend on data and seed alone, as other batches do.
class RolloutBatches final : public Batches {
 public:
  /// Answers prompts, which are examples of the data. All ranks call it.
  using Write = std::function<Rollout(int64_t step, const std::vector<int64_t>& prompts)>;

  /// @param prompts must outlive this object
  RolloutBatches(const config::RunConfig& config, const data::Dataset& prompts, Write write);
  int64_t total_steps() const override { return steps_.total_steps(); }
  /// Writes the answers of the step. If none has a reward, all have 0, with a warning.
  int prepare(int64_t step) override;
  /// @pre prepare(step)
  data::StepBatch at(int64_t step) override;
  /// Made up: the longest prompt with the longest answer.
  data::StepBatch longest(int64_t num_bins) const override;
  int64_t micro_batch_tokens(int64_t num_bins, bool of_longest) const override;
  int64_t bins_in_epoch() const override { return plan_.bins_in_epoch(0) * rollouts_.n; }
  double epochs_after(int64_t step) const override { return steps_.epochs_after(step); }
  bool ends_epoch(int64_t step) const override { return steps_.ends_epoch(step); }
  const data::SourceFile& file_of(const data::StepBatch& batch, int64_t index) const override {
    return batch.files.at(static_cast<size_t>(batch.examples.stored(index).file));
  }
  int64_t num_bad_records() const override { return prompts_.stats().num_bad; }

 private:
  std::vector<int64_t> prompts_of(int64_t step) const;
  data::Example example_of(const RolloutAnswer& answer, double reward, int64_t prompt,
                           size_t place) const;
  data::StepBatch batch_of(const Rollout& rollout, const std::vector<int64_t>& prompts) const;

  const config::RolloutsConfig rollouts_;
  const config::ScaleRewards scale_rewards_;
  const data::Dataset& prompts_;
  data::BatchPlan plan_;
  StepPlan steps_;
  Write write_;
  int64_t longest_prompt_ = 0;
  int64_t prepared_step_ = -1;
  data::StepBatch prepared_;
  RolloutFaults faults_;
};

}  // namespace sftrun::train
