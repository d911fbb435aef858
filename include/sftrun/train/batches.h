#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/batch_stream.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/deal.h"
#include "sftrun/data/image_load.h"

/// The source of a run's batches.
namespace sftrun::train {

/// Position of an optimizer step in the data. Each batch may have several consecutive steps.
struct StepPosition {
  int64_t epoch = 0, step_in_epoch = 0, steps_in_epoch = 0;
};

/// Optimizer steps of a run: from epochs (the last one may be partial) or max_steps.
class StepPlan {
 public:
  /// @param config says how long the run is, and how many steps a batch of the plan gets
  StepPlan(const data::BatchPlan& plan, const config::TrainConfig& config);
  int64_t total_steps() const { return total_steps_; }
  StepPosition position(int64_t step) const;
  double epochs_after(int64_t step) const;
  bool ends_epoch(int64_t step) const;

 private:
  std::vector<int64_t> steps_in_epoch_;  // of each complete epoch
  int64_t total_steps_ = 0;
};

/// The global batches of a run, the same on all ranks.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual int64_t total_steps() const = 0;
  /// Does what must be done before `at(step)` and may take long. All ranks call it.
  /// @return 0, or the exit code of a stop that any rank was asked for: then the step has no batch
  virtual int prepare(int64_t /*step*/) { return 0; }
  /// The batch of a step; call it for consecutive steps.
  virtual data::StepBatch at(int64_t step) = 0;
  /// From now on steps are dealt by cost.
  void deal_with(data::Dealer dealer) { dealer_ = std::move(dealer); }
  /// Whether later steps have the same examples, and are to know log p of their labels before this one.
  virtual bool wants_label_logps(int64_t /*step*/) const { return false; }
  /// @param logps of all labels of the batch, in its order
  virtual void keep_label_logps(std::vector<float> /*logps*/) {}
  /// The longest bins of the data, at most `num_bins`, as the batch of a step that never comes.
  virtual data::StepBatch longest(int64_t num_bins) const = 0;
  /// The largest micro-batches that may come: `longest`, and for each of `by` the `num_bins` bins of the
  /// data with most of it, unless they are the same.
  virtual std::vector<data::StepBatch> largest(int64_t num_bins,
                                               std::span<const data::BinCost> /*by*/) const {
    return {longest(num_bins)};
  }
  /// Number of passes over the data after `step`.
  virtual double epochs_after(int64_t step) const = 0;
  virtual bool ends_epoch(int64_t step) const = 0;
  virtual int64_t num_bad_records() const = 0;  ///< left out so far (data.bad_records: skip)
  /// What a checkpoint must keep for the next batch to be found again; null: its step says it all.
  virtual nlohmann::ordered_json position() const { return nullptr; }
  /// The file that example `index` of a batch came from.
  virtual const data::SourceFile& file_of(const data::StepBatch& batch, int64_t index) const = 0;
  /// Tokens of the largest micro-batch of so many bins that the first epoch has, or that its longest
  /// bins would be; 0: the data is not known yet.
  virtual int64_t micro_batch_tokens(int64_t /*num_bins*/, bool /*of_longest*/) const { return 0; }
  /// The micro-batch of so many bins with most patches that the first epoch's steps have, or of its
  /// largest bins; nothing: the data is not known yet.
  virtual data::ImageLoad micro_batch_images(int64_t /*num_bins*/, bool /*of_longest*/,
                                             data::ImageCounter& /*counter*/) const {
    return {};
  }
  /// Of the first one; a step has no more. 0: the data is not known yet.
  virtual int64_t bins_in_epoch() const { return 0; }

 protected:
  const data::Dealer& dealer() const { return dealer_; }

 private:
  data::Dealer dealer_;
};

/// Batches of a data set that was read completely. @param dataset must outlive this object
class PlannedBatches final : public Batches {
 public:
  PlannedBatches(const config::RunConfig& config, const data::Dataset& dataset);
  int64_t total_steps() const override { return steps_.total_steps(); }
  data::StepBatch at(int64_t step) override;
  data::StepBatch longest(int64_t num_bins) const override;
  std::vector<data::StepBatch> largest(int64_t num_bins,
                                       std::span<const data::BinCost> by) const override;
  int64_t micro_batch_tokens(int64_t num_bins, bool of_longest) const override;
  data::ImageLoad micro_batch_images(int64_t num_bins, bool of_longest,
                                     data::ImageCounter& counter) const override;
  int64_t bins_in_epoch() const override { return plan_.bins_in_epoch(0); }
  double epochs_after(int64_t step) const override { return steps_.epochs_after(step); }
  bool ends_epoch(int64_t step) const override { return steps_.ends_epoch(step); }
  const data::SourceFile& file_of(const data::StepBatch&, int64_t index) const override {
    return dataset_.file_of(index);
  }
  int64_t num_bad_records() const override { return dataset_.stats().num_bad; }

 private:
  std::vector<std::vector<data::Bin>> first_bins() const;
  data::StepBatch batch_of(std::vector<data::Bin> bins) const;
  std::vector<data::Bin> largest_bins(int64_t num_bins, const data::BinCost& by) const;

  const data::Dataset& dataset_;
  data::BatchPlan plan_;
  StepPlan steps_;
};

/// train.max_steps batches of data that are tokenised during training.
class StreamedBatches final : public Batches {
 public:
  /// @param position from position() in a checkpoint; null: start of the data
  StreamedBatches(const config::RunConfig& config, const data::TextModel& model, int num_threads,
                  const nlohmann::ordered_json& position)
      : total_steps_(config.train.max_steps.value()),
        longest_document_(config.data.bin_tokens.value.value_or(config.model.max_seq_len)),
        documents_of_bin_(data::documents_together(config)),
        stream_(config, model, num_threads, position) {}
  int64_t total_steps() const override { return total_steps_; }
  data::StepBatch at(int64_t) override;
  /// Made up, as long as bins may be: the data is not known yet.
  data::StepBatch longest(int64_t num_bins) const override;
  /// Of the first window.
  std::vector<data::StepBatch> largest(int64_t num_bins,
                                       std::span<const data::BinCost> by) const override;
  double epochs_after(int64_t) const override { return stream_.epochs(); }
  bool ends_epoch(int64_t) const override { return false; }
  nlohmann::ordered_json position() const override { return stream_.position(); }
  const data::SourceFile& file_of(const data::StepBatch& batch, int64_t index) const override {
    return batch.files.at(static_cast<size_t>(batch.examples.stored(index).file));
  }
  const std::string& fingerprint() const { return stream_.fingerprint(); }
  const std::vector<std::pair<std::string, std::string>>& file_hashes() const {
    return stream_.file_hashes();
  }
  int64_t num_bad_records() const override { return stream_.num_bad_records(); }

 private:
  int64_t total_steps_;
  int64_t longest_document_, documents_of_bin_;
  data::BatchStream stream_;
};

/// Tokens of the longest example; 0: there is none.
int64_t longest_example(const data::Dataset& dataset);
/// A made-up batch of bins that hold the same example so many times.
data::StepBatch batch_of_equal(const data::Example& example, int64_t num_bins,
                               int64_t documents_of_bin);
/// The division of the training data into steps. Of prompts a step has as many as give its answers.
data::BatchPlan plan_of_steps(const config::RunConfig& config, const data::Dataset& dataset);
/// The division of data into batches, as configured.
/// @param parts of the data set; none: every example once
data::BatchPlan make_batch_plan(const config::RunConfig& config, const data::Dataset& dataset,
                                std::span<const data::DatasetPart> parts, bool shuffle,
                                int64_t global_batch_size);

}  // namespace sftrun::train
