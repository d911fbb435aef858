#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "sftrun/train/trainer_inputs.h"
#include "support/reference.h"
#include "support/single_strategy.h"

/// A run of a few steps of a tiny model.
namespace sftrun::test {

inline constexpr int64_t kStepsOfRun = 4, kStepsOfEpoch = 2, kBinsOfStep = 5;

inline std::filesystem::path model_path() {
  return std::filesystem::path(SFTRUN_TEST_DATA) / "models" / "tied-gqa";
}

/// The same few examples in every step, in bins of one or two. The last micro-batches are empty.
class RepeatedBatches final : public train::Batches {
 public:
  RepeatedBatches() : examples_(test::read_reference(model_path()).examples) {
    while (static_cast<int64_t>(examples_.size()) < kBinsOfStep) examples_.push_back(examples_[0]);
  }
  int64_t total_steps() const override { return kStepsOfRun; }
  data::StepBatch at(int64_t step) override {
    data::StepBatch batch;
    batch.examples = data::ExampleStore::in_memory(examples_);
    for (int64_t bin = 0; bin < kBinsOfStep; ++bin)
      batch.bins.push_back({(bin + step) % kBinsOfStep});
    batch.deal = dealer().deal(batch.examples, batch.bins);
    for (const data::Example& example : examples_) {
      batch.label_tokens += example.label_tokens;
      batch.tokens += static_cast<int64_t>(example.tokens.size());
    }
    return batch;
  }
  data::StepBatch longest(int64_t num_bins) const override {
    data::StepBatch batch{.examples = data::ExampleStore::in_memory(examples_)};
    for (int64_t bin = 0; bin < num_bins; ++bin) batch.bins.push_back({0, 1});
    batch.label_tokens = 2 * num_bins * examples_[0].label_tokens;
    return batch;
  }
  std::vector<data::StepBatch> largest(int64_t num_bins,
                                       std::span<const data::BinCost> by) const override {
    return std::vector<data::StepBatch>(1 + by.size(), longest(num_bins));
  }
  double epochs_after(int64_t step) const override {
    return static_cast<double>(step + 1) / kStepsOfEpoch;
  }
  bool ends_epoch(int64_t step) const override { return (step + 1) % kStepsOfEpoch == 0; }
  int64_t num_bad_records() const override { return 0; }
  const data::SourceFile& file_of(const data::StepBatch&, int64_t) const override { return file_; }

 private:
  std::vector<data::Example> examples_;
  data::SourceFile file_{.path = "examples.jsonl"};
};

/// The inputs of a trainer in this process alone, which trains all weights and evaluates nothing.
struct TinyRun {
  explicit TinyRun(const std::filesystem::path& run_dir)
      : decoder(model::Decoder::load(weights::Checkpoint::open(model_path()),
                                     {.trains = model::Trains::kFull})),
        strategy(single_strategy(*decoder)) {
    config::TrainConfig& train = inputs.config.train;
    train.batch_size.value = 1;
    train.grad_accum.value = kBinsOfStep;
    train.learning_rate = 1e-2;
    train.scheduler = config::Scheduler::kConstant;
    train.warmup_steps = 0;
    train.eval_strategy = config::EvalStrategy::kSteps;
    train.eval_steps = 2;
    train.eval_batch_size.value = 1;
    inputs.config.data.packing = false;
    inputs.config.output.tensorboard = false;
    inputs.run_dir = run_dir;
    inputs.decoder = decoder.get();
    inputs.comm = &alone;
    inputs.strategy = strategy.get();
    inputs.batches = &batches;
    inputs.identity = {{"model", "m"}, {"config", {{"model.dtype", "fp32"}}}};
  }
  /// Evaluates the examples that it trains on.
  void add_validation() {
    val.emplace(data::ExampleStore::in_memory(read_reference(model_path()).examples),
                std::vector<data::DatasetPart>{}, data::DatasetStats{}, "v");
    inputs.val = &*val;
  }

  std::unique_ptr<model::Decoder> decoder;
  std::unique_ptr<parallel::Strategy> strategy;
  parallel::Communicator alone;
  RepeatedBatches batches;
  std::optional<data::Dataset> val;
  train::TrainerInputs inputs;
};

}  // namespace sftrun::test
