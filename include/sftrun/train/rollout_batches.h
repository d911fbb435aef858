#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "sftrun/train/batches.h"
#include "sftrun/train/rollout_answers.h"
#include "sftrun/train/rollout_faults.h"

/// Batches of answers that the run writes between its steps (`train.rollouts`).
namespace sftrun::train {

/// A step has train.global_batch_size answers, `rollouts.n` to each of its prompts. The prompts of a
/// step depend on data and seed alone, as other batches do. With `rollouts.num_iterations` several
/// consecutive steps have the same answers, whose log-probabilities before the first of them the others
/// get as those of the model that sampled; a checkpoint between them has both.
class RolloutBatches final : public Batches {
 public:
  /// Answers prompts, which are examples of the data. All ranks call it.
  using Write = std::function<Rollout(int64_t step, const std::vector<int64_t>& prompts)>;

  /// @param prompts must outlive this object   @param position of a checkpoint; null: it has none
  RolloutBatches(const config::RunConfig& config, const data::Dataset& prompts, Write write,
                 const nlohmann::ordered_json& position = nullptr);
  int64_t total_steps() const override { return steps_.total_steps(); }
  /// Writes the answers of the step, unless it has those of the step before. If none has a reward, all
  /// have 0, with a warning.
  int prepare(int64_t step) override;
  /// @pre prepare(step)
  data::StepBatch at(int64_t step) override;
  bool wants_label_logps(int64_t step) const override;
  void keep_label_logps(std::vector<float> logps) override { sampled_.logps = std::move(logps); }
  /// The answers that the next step has again; null: it gets others.
  nlohmann::ordered_json position() const override;
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
  /// Answers, and log p of the labels of the examples that they become, when they were sampled.
  struct Sampled {
    int64_t first_step = -1;  ///< of those that have them; -1: none
    Rollout rollout;
    std::vector<float> logps;  ///< empty: not known yet
  };
  int64_t first_step_of(int64_t step) const { return step - step % rollouts_.num_iterations; }
  int sample(int64_t step);
  observe::NamedValues metrics_of_step(int64_t step) const;
  std::vector<int64_t> prompts_of(int64_t step) const;
  data::Example example_of(const RolloutAnswer& answer, double reward, int64_t prompt,
                           size_t place) const;
  std::vector<data::Example> examples_of(const std::vector<int64_t>& prompts) const;
  data::StepBatch batch_of(const std::vector<int64_t>& prompts) const;

  const config::RolloutsConfig rollouts_;
  const config::ScaleRewards scale_rewards_;
  const data::Dataset& prompts_;
  data::BatchPlan plan_;
  StepPlan steps_;
  Write write_;
  int64_t longest_prompt_ = 0;
  Sampled sampled_;
  int64_t prepared_step_ = -1, next_step_ = 0;
  data::StepBatch prepared_;
  RolloutFaults faults_;
};

}  // namespace sftrun::train
