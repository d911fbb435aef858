#include "sftrun/train/batches.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "sftrun/core/error.h"

namespace sftrun::train {

StepPlan::StepPlan(const data::BatchPlan& plan, const config::TrainConfig& config) {
  const double epochs = config.epochs;
  const std::optional<int64_t> max_steps = config.max_steps;
  int64_t steps = 0;
  for (int64_t epoch = 0;; ++epoch) {
    const double left = epochs - static_cast<double>(epoch);
    if (max_steps ? steps >= *max_steps : left <= 0) break;
    const int64_t in_epoch = plan.steps_per_epoch(epoch) * config.steps_of_batch();
    SFTRUN_CHECK(in_epoch > 0);
    steps_in_epoch_.push_back(in_epoch);
    const bool whole = max_steps || left >= 1;
    steps += whole ? in_epoch
                   : std::max<int64_t>(
                         1, static_cast<int64_t>(std::ceil(left * static_cast<double>(in_epoch))));
  }
  total_steps_ = max_steps ? *max_steps : steps;
}

StepPosition StepPlan::position(int64_t step) const {
  for (size_t epoch = 0; epoch < steps_in_epoch_.size(); ++epoch) {
    if (step < steps_in_epoch_[epoch])
      return {static_cast<int64_t>(epoch), step, steps_in_epoch_[epoch]};
    step -= steps_in_epoch_[epoch];
  }
  invariant_failed(__FILE__, __LINE__, "step < total_steps");
}

double StepPlan::epochs_after(int64_t step) const {
  const StepPosition at = position(step);
  return static_cast<double>(at.epoch) +
         static_cast<double>(at.step_in_epoch + 1) / static_cast<double>(at.steps_in_epoch);
}

bool StepPlan::ends_epoch(int64_t step) const {
  const StepPosition at = position(step);
  return at.step_in_epoch + 1 == at.steps_in_epoch;
}

data::BatchPlan make_batch_plan(const config::RunConfig& config, const data::Dataset& dataset,
                                std::span<const data::DatasetPart> parts, bool shuffle,
                                int64_t global_batch_size) {
  std::vector<int64_t> lengths, label_tokens;
  for (int64_t i = 0; i < dataset.examples().size(); ++i) {
    lengths.push_back(dataset.examples().stored(i).length);
    label_tokens.push_back(dataset.examples().stored(i).label_tokens);
  }
  data::BatchPlanOptions options;
  options.max_seq_len = config.model.max_seq_len;
  options.bin_tokens = config.data.bin_tokens.value.value_or(0);
  options.global_batch_size = global_batch_size;
  options.packing = config.data.packing;
  options.group_by_length = config.data.group_by_length;
  options.documents_together = data::documents_together(config);
  options.shuffle = shuffle;
  options.seed = static_cast<uint64_t>(config.data.seed);
  for (const data::DatasetPart& part : parts)
    options.groups.push_back({part.begin, part.end, part.weight});
  return {std::move(lengths), std::move(label_tokens), options};
}

data::BatchPlan plan_of_steps(const config::RunConfig& config, const data::Dataset& dataset) {
  const int64_t examples = config.train.global_batch_size.value.value();
  return make_batch_plan(config, dataset, dataset.parts(), config.data.shuffle,
                         examples / config.train.examples_of_record());
}

PlannedBatches::PlannedBatches(const config::RunConfig& config, const data::Dataset& dataset)
    : dataset_(dataset), plan_(plan_of_steps(config, dataset)), steps_(plan_, config.train) {}

data::StepBatch PlannedBatches::batch_of(std::vector<data::Bin> bins) const {
  data::StepBatch batch{.examples = dataset_.examples(), .bins = std::move(bins)};
  batch.label_tokens = plan_.label_tokens(batch.bins);
  for (const data::Bin& bin : batch.bins) batch.tokens += data::tokens_of(batch.examples, bin);
  return batch;
}

data::StepBatch PlannedBatches::at(int64_t step) {
  const StepPosition position = steps_.position(step);
  data::StepBatch batch = batch_of(plan_.global_batch(position.epoch, position.step_in_epoch));
  batch.deal = dealer().deal(batch.examples, batch.bins);
  return batch;
}

std::vector<data::Bin> PlannedBatches::largest_bins(int64_t num_bins,
                                                    const data::BinCost& by) const {
  std::vector<data::Bin> bins;
  for (int64_t step = 0; step < plan_.steps_per_epoch(0); ++step)
    for (data::Bin& bin : plan_.global_batch(0, step)) bins.push_back(std::move(bin));
  return data::largest_bins(dataset_.examples(), std::move(bins), num_bins, by);
}

data::StepBatch PlannedBatches::longest(int64_t num_bins) const {
  return batch_of(largest_bins(num_bins, data::tokens_of));
}

std::vector<data::StepBatch> PlannedBatches::largest(int64_t num_bins,
                                                     std::span<const data::BinCost> by) const {
  std::vector<data::StepBatch> batches = {longest(num_bins)};
  for (const data::BinCost& measure : by) {
    data::StepBatch batch = batch_of(largest_bins(num_bins, measure));
    const bool is_new = std::ranges::none_of(batches, [&](const data::StepBatch& other) {
      return std::ranges::is_permutation(other.bins, batch.bins);
    });
    if (is_new) batches.push_back(std::move(batch));
  }
  return batches;
}

/// Of steps of the first epoch: lists of bins, of which consecutive ones are a micro-batch.
std::vector<std::vector<data::Bin>> PlannedBatches::first_bins() const {
  std::vector<std::vector<data::Bin>> lists;
  const int64_t steps = std::min(steps_.total_steps(), plan_.steps_per_epoch(0));
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<data::Bin> bins = plan_.global_batch(0, step);
    const data::Deal dealt = dealer().deal(dataset_.examples(), bins);
    for (const std::vector<int64_t>& places : dealt) {
      lists.emplace_back();
      for (const int64_t place : places) lists.back().push_back(bins[static_cast<size_t>(place)]);
    }
    if (dealt.empty()) lists.push_back(std::move(bins));
  }
  return lists;
}

int64_t PlannedBatches::micro_batch_tokens(int64_t num_bins, bool of_longest) const {
  if (of_longest) return plan_.longest_tokens(num_bins);
  if (!dealer().cost) return plan_.max_tokens(num_bins, steps_.total_steps());
  int64_t most = 0;
  for (const std::vector<data::Bin>& micro_batch : first_bins()) {
    int64_t tokens = 0;
    for (const data::Bin& bin : micro_batch) tokens += data::tokens_of(dataset_.examples(), bin);
    most = std::max(most, tokens);
  }
  return most;
}

data::ImageLoad PlannedBatches::micro_batch_images(int64_t num_bins, bool of_longest,
                                                   data::ImageCounter& counter) const {
  data::ImageLoad largest;
  const auto include = [&](const std::vector<data::Bin>& bins) {
    const data::ImageLoad load =
        data::largest_image_load(dataset_.examples(), bins, num_bins, counter);
    const int64_t longest_tile = std::max(largest.longest_tile, load.longest_tile);
    if (load.patches > largest.patches) largest = load;
    largest.longest_tile = longest_tile;
  };
  for (const std::vector<data::Bin>& bins : first_bins()) include(bins);
  if (!of_longest) return largest;
  include(longest(num_bins).bins);
  include(largest_bins(num_bins, [&](const data::ExampleStore& examples, const data::Bin& bin) {
    return counter.of(examples, bin).patches;
  }));
  return largest;
}

data::StepBatch StreamedBatches::at(int64_t) {
  data::StepBatch batch = stream_.next();
  batch.deal = dealer().deal(batch.examples, batch.bins);
  return batch;
}

int64_t longest_example(const data::Dataset& dataset) {
  int64_t longest = 0;
  for (int64_t i = 0; i < dataset.examples().size(); ++i)
    longest = std::max<int64_t>(longest, dataset.examples().stored(i).length);
  return longest;
}

data::StepBatch batch_of_equal(const data::Example& example, int64_t num_bins,
                               int64_t documents_of_bin) {
  const int64_t num_documents = num_bins * documents_of_bin;
  data::StepBatch batch{.label_tokens = num_documents * example.label_tokens,
                        .tokens = num_documents * std::ssize(example.tokens)};
  batch.examples = data::ExampleStore::in_memory(
      std::vector<data::Example>(static_cast<size_t>(num_documents), example));
  for (int64_t first = 0; first < num_documents; first += documents_of_bin) {
    data::Bin bin(static_cast<size_t>(documents_of_bin));
    std::iota(bin.begin(), bin.end(), first);
    batch.bins.push_back(std::move(bin));
  }
  return batch;
}

data::StepBatch StreamedBatches::longest(int64_t num_bins) const {
  data::Example document{.label_tokens = longest_document_ - 1};
  document.tokens.assign(static_cast<size_t>(longest_document_), 0);
  document.labels.assign(static_cast<size_t>(longest_document_), 0);
  document.labels.back() = data::kIgnoreIndex;
  return batch_of_equal(document, num_bins, documents_of_bin_);
}

std::vector<data::StepBatch> StreamedBatches::largest(int64_t num_bins,
                                                      std::span<const data::BinCost> by) const {
  std::vector<data::StepBatch> batches = {longest(num_bins)};
  for (data::StepBatch& batch : stream_.largest(num_bins, by)) batches.push_back(std::move(batch));
  return batches;
}

}  // namespace sftrun::train
