#include "sftrun/train/embeddings.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <span>

#include "sftrun/core/xxh3.h"
#include "sftrun/train/micro_batch_schedule.h"

namespace sftrun::train {

at::Tensor embed_texts(const model::Stage& stage, const Objective& objective,
                       const EmbeddedMicroBatches& batches, const model::Randomness& randomness,
                       bool is_pinned, parallel::Communicator& comm, const parallel::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  model::Decoder& decoder = stage.decoder();
  const at::Device device = decoder.batch_target().device;
  const bool counts = mesh.counts_loss_of(comm.rank());
  at::Tensor all = at::zeros({batches.num_texts, decoder.arch().hidden_size},
                             at::TensorOptions(device).dtype(at::kFloat));
  for (int64_t i = 0; i < batches.num_micro_batches; ++i) {
    const data::Batch batch = batches.micro_batch(i);
    const model::PackedBatch packed =
        model::prepare_batch(batch, decoder.rope(), decoder.batch_target(), randomness,
                             batch_options(objective, is_pinned));
    model::MicroBatchRun run(packed, [&](const at::Tensor& embeddings) -> layers::ScoredLoss {
      if (counts)
        all.index_copy_(0, at::tensor(batch.document_keys, at::kLong).to(device), embeddings);
      return {at::zeros({}, embeddings.options().dtype(at::kDouble)), {}};
    });
    stage.forward(run);
    stage.loss(run);
  }
  // Each row is of one rank, and zero on the others: the sum is exact.
  comm.world().all_reduce(all);
  return all;
}

namespace {

int64_t text_number(const data::ExampleView& example) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < example.size(); ++i) tokens.push_back(example.token(i));
  return static_cast<int64_t>(xxh3_64(std::as_bytes(std::span<const int32_t>(tokens))));
}

}  // namespace

at::Tensor text_numbers(const data::ExampleStore& examples, const std::vector<data::Bin>& bins) {
  std::vector<int64_t> numbers;
  for (const data::Bin& bin : bins)
    for (const int64_t index : bin) numbers.push_back(text_number(examples[index]));
  return at::tensor(numbers, at::kLong);
}

bool tells_nothing_apart(const at::Tensor& texts, int64_t sequences) {
  if (texts.numel() < 2 * sequences) return false;
  const at::Tensor examples = texts.view({-1, sequences});
  const auto are_same = [](const at::Tensor& some) {
    return (some == some.min()).all().item<bool>();
  };
  return are_same(examples.slice(1, 1)) || (sequences == 2 && are_same(examples.select(1, 0)));
}

bool tells_nothing_apart(const data::ExampleStore& examples, int64_t sequences) {
  if (examples.size() < 2 * sequences) return false;
  const int64_t query = text_number(examples[0]), own = text_number(examples[1]);
  bool same_queries = sequences == 2, same_texts = true;
  for (int64_t i = 2; i < examples.size() && (same_queries || same_texts); ++i) {
    const bool is_query = i % sequences == 0;
    bool& are_same = is_query ? same_queries : same_texts;
    are_same = are_same && text_number(examples[i]) == (is_query ? query : own);
  }
  return same_queries || same_texts;
}

ScoreValue share_of(const EmbeddedBatch& embedded, const std::vector<int64_t>& document_keys,
                    int64_t sequences) {
  std::vector<int64_t> examples;
  for (const int64_t key : document_keys)
    if (key % sequences == 0) examples.push_back(key / sequences);
  const at::Tensor own = at::tensor(examples, at::kLong).to(embedded.losses.device());
  ScoreValue value{.loss_sum = embedded.losses.index_select(0, own).sum(),
                   .gradient = {},
                   .metrics = {},
                   .confusion = {}};
  const at::Tensor sums = embedded.metrics.index_select(1, own).sum(1);
  for (size_t i = 0; i < embedded.metric_names.size(); ++i)
    value.metrics.push_back({embedded.metric_names[i], sums[static_cast<int64_t>(i)]});
  return value;
}

ScoreValue embed_documents(const model::Stage& stage, model::MicroBatchRun& run,
                           const Objective& objective, const std::vector<int64_t>& places,
                           const EmbeddedBatch& embedded) {
  run.options.score_loss = [&](const at::Tensor& embeddings) -> layers::ScoredLoss {
    const at::Tensor own = at::tensor(places, at::kLong).to(embeddings.device());
    return {at::zeros({}, embeddings.options().dtype(at::kDouble)),
            embedded.gradients.index_select(0, own)};
  };
  stage.forward(run);
  stage.loss(run);
  run.options.score_loss = {};
  return share_of(embedded, places, objective.config().sequences());
}

}  // namespace sftrun::train
