#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/data/prompt.h"
#include "sftrun/train/batches.h"
#include "sftrun/train/rollout_answers.h"
#include "sftrun/train/rollout_faults.h"

/// Batches in which the student itself answers a share of the examples (`train.rollouts.share`).
namespace sftrun::train {

/// An example that the student answers.
struct AskedExample {
  data::PromptTokens prompt;   ///< what comes before its last answer; not empty
  int64_t max_new_tokens = 1;  ///< what model.max_seq_len leaves room for
  std::string place;           ///< "file:line" of its record
  std::string record;          ///< as JSON; empty: it was not kept
};

/// The batches of data, where each example of a step gets an answer of the student with the probability
/// `rollouts.share`, in place of its last one. Such an example has labels on that answer alone, without
/// weights; the others, and the order of all, stay as they are. Which ones it is follows from seed, step
/// and place in the step. Examples without a prompt keep their labels.
class OnPolicyBatches final : public Batches {
 public:
  /// Answers examples, in their order. All ranks call it.
  using Write = std::function<Rollout(int64_t step, const std::vector<AskedExample>& asked)>;

  /// @param data without a dealer   @param known the data set of `data`, which must outlive this object;
  /// null: it is streamed   @throws DataError if no example has a prompt
  OnPolicyBatches(const config::RunConfig& config, std::unique_ptr<Batches> data,
                  const data::Dataset* known, Write write);

  int64_t total_steps() const override { return data_->total_steps(); }
  /// Writes the answers of the step.
  int prepare(int64_t step) override;
  /// @pre prepare(step)
  data::StepBatch at(int64_t step) override;
  data::StepBatch longest(int64_t num_bins) const override;
  /// Those of the data, and the longest prompts with made-up answers that are as long as they may be.
  std::vector<data::StepBatch> largest(int64_t num_bins,
                                       std::span<const data::BinCost> by) const override;
  double epochs_after(int64_t step) const override { return data_->epochs_after(step); }
  bool ends_epoch(int64_t step) const override { return data_->ends_epoch(step); }
  int64_t num_bad_records() const override { return data_->num_bad_records(); }
  /// Before the data of a step that was prepared, and has not been taken.
  nlohmann::ordered_json position() const override {
    return before_prepared_ ? *before_prepared_ : data_->position();
  }
  const data::SourceFile& file_of(const data::StepBatch& batch, int64_t index) const override;
  int64_t micro_batch_tokens(int64_t num_bins, bool of_longest) const override;
  data::ImageLoad micro_batch_images(int64_t num_bins, bool of_longest,
                                     data::ImageCounter& counter) const override {
    return data_->micro_batch_images(num_bins, of_longest, counter);
  }
  int64_t bins_in_epoch() const override { return data_->bins_in_epoch(); }

  /// Tokens of the longest prompt with its answer; of streamed data what there may be.
  int64_t longest_answered() const;

 private:
  struct Asked;
  std::optional<AskedExample> asked_of(const data::ExampleStore& examples, int64_t index) const;
  Asked asked_in(const data::StepBatch& batch, int64_t step) const;
  data::StepBatch with_answers(data::StepBatch batch, const Asked& asked,
                               const std::vector<RolloutAnswer>& answers) const;
  data::StepBatch longest_asked(int64_t num_bins) const;
  void find_longest_prompts(size_t count);

  const config::RolloutsConfig rollouts_;
  uint64_t seed_;
  int64_t max_seq_len_;
  std::unique_ptr<Batches> data_;
  const data::Dataset* known_;
  Write write_;
  std::vector<std::pair<int64_t, int64_t>> prompts_;  // length and example, the longest first
  std::optional<nlohmann::ordered_json> before_prepared_;
  int64_t prepared_step_ = -1;
  data::StepBatch prepared_;
  RolloutFaults faults_;
};

}  // namespace sftrun::train
