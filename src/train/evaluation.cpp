#include "sftrun/train/evaluation.h"

#include <ATen/ATen.h>

#include <chrono>

#include "sftrun/model/stage.h"
#include "sftrun/train/batches.h"

namespace sftrun::train {

Evaluator::Evaluator(const config::RunConfig& config, const data::Dataset& val)
    : val_(val),
      plan_(make_batch_plan(config, val, /*shuffle=*/false, val.examples().size())),
      micro_batch_size_(config.train.eval_batch_size.value.value_or(1)),
      is_pinned_(config.train.dataloader_pin_memory) {}

EvalResult Evaluator::run(model::Decoder& decoder, parallel::Strategy& strategy,
                          parallel::Communicator& comm) const {
  const auto start = std::chrono::steady_clock::now();
  const model::Stage stage(decoder, &strategy);
  const parallel::Mesh& mesh = strategy.mesh();
  // The whole validation set is one batch
  const std::vector<data::Bin> bins = plan_.global_batch(0, 0);
  const auto num_bins = static_cast<int64_t>(bins.size());
  double label_tokens = 0;
  at::Tensor loss_sum =
      at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(decoder.options().device));
  for (int64_t first = 0; first < num_bins; first += mesh.dp_size() * micro_batch_size_) {
    const data::Batch batch = data::make_batch(
        val_.examples(), bins, first + mesh.dp_rank() * micro_batch_size_, micro_batch_size_);
    loss_sum.add_(stage.loss(model::prepare_batch(batch, decoder.rope(), decoder.batch_target(), {},
                                                  {.is_pinned = is_pinned_})));
    label_tokens += static_cast<double>(batch.label_tokens);
  }
  double total_loss = 0, total_tokens = 0;
  const auto ranks = comm.all_gather({loss_sum.item<double>(), label_tokens});
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!mesh.counts_loss_of(static_cast<int>(rank))) continue;
    total_loss += ranks[rank][0];
    total_tokens += ranks[rank][1];
  }
  EvalResult result;
  result.loss = total_loss / total_tokens;
  result.label_tokens = static_cast<int64_t>(total_tokens);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace sftrun::train
