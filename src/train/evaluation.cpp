#include "sftrun/train/evaluation.h"

#include <chrono>

namespace sftrun::train {

data::BatchPlan make_batch_plan(const config::RunConfig& config, const data::Dataset& dataset,
                                bool shuffle, int64_t global_batch_size) {
  std::vector<int64_t> lengths, label_tokens;
  for (const data::Example& example : dataset.examples()) {
    lengths.push_back(static_cast<int64_t>(example.tokens.size()));
    label_tokens.push_back(example.label_tokens);
  }
  data::BatchPlanOptions options;
  options.max_seq_len = config.model.max_seq_len;
  options.global_batch_size = global_batch_size;
  options.packing = config.data.packing;
  options.shuffle = shuffle;
  options.seed = static_cast<uint64_t>(config.data.seed);
  return {std::move(lengths), std::move(label_tokens), options};
}

Evaluator::Evaluator(const config::RunConfig& config, const data::Dataset& val)
    : val_(val),
      plan_(make_batch_plan(config, val, /*shuffle=*/false,
                            static_cast<int64_t>(val.examples().size()))),
      micro_batch_size_(config.train.eval_batch_size.value.value_or(1)) {}

EvalResult Evaluator::run(model::Decoder& decoder, parallel::Communicator& comm) const {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<data::Bin> bins = plan_.global_batch(0, 0);  // one batch holds the whole set
  const auto num_bins = static_cast<int64_t>(bins.size());
  double loss_sum = 0, label_tokens = 0;
  for (int64_t first = comm.rank() * micro_batch_size_; first < num_bins;
       first += comm.world_size() * micro_batch_size_) {
    const data::Batch batch = data::make_batch(val_.examples(), bins, first,
                                               std::min(micro_batch_size_, num_bins - first));
    loss_sum +=
        decoder.loss(model::prepare_batch(batch, decoder.rope(), decoder.options().device, {}));
    label_tokens += static_cast<double>(batch.label_tokens);
  }
  double total_loss = 0, total_tokens = 0;
  for (const auto& rank : comm.all_gather({loss_sum, label_tokens})) {
    total_loss += rank[0];
    total_tokens += rank[1];
  }
  EvalResult result;
  result.loss = total_loss / total_tokens;
  result.label_tokens = static_cast<int64_t>(total_tokens);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace sftrun::train
