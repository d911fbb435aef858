#include "sftrun/train/label_logps.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/train/micro_batch_schedule.h"

namespace sftrun::train {
namespace {

/// Where the labels of each document begin among those of the global batch, by its key.
std::vector<int64_t> places_of_documents(const data::ExampleStore& examples,
                                         const std::vector<data::Bin>& bins) {
  std::vector<int64_t> places = {0};
  for (const data::Bin& bin : bins)
    for (const int64_t index : bin)
      places.push_back(places.back() + examples.stored(index).label_tokens);
  return places;
}

/// Of each labelled row of a micro-batch, in order, its place among the labels of the global batch.
std::vector<int64_t> places_of_rows(const data::Batch& batch,
                                    const std::vector<int64_t>& of_documents) {
  std::vector<int64_t> places;
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const auto first = batch.labels.begin() + batch.cu_seqlens[document],
               end = batch.labels.begin() + batch.cu_seqlens[document + 1];
    const auto count =
        std::count_if(first, end, [](int32_t id) { return id != data::kIgnoreIndex; });
    for (int64_t i = 0; i < count; ++i)
      places.push_back(of_documents[static_cast<size_t>(batch.document_keys[document])] + i);
  }
  return places;
}

}  // namespace

std::vector<float> label_logps_of(const model::Stage& stage, const Objective& objective,
                                  const LabelledMicroBatches& batches,
                                  const model::Randomness& randomness, bool is_pinned,
                                  parallel::Communicator& comm, const parallel::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  model::Decoder& decoder = stage.decoder();
  const std::vector<int64_t> of_documents = places_of_documents(batches.examples, batches.bins);
  at::Tensor all = at::zeros({of_documents.back()},
                             at::TensorOptions(decoder.batch_target().device).dtype(at::kFloat));
  const bool counts = mesh.counts_loss_of(comm.rank());
  for (int64_t i = 0; i < batches.num_micro_batches; ++i) {
    const data::Batch batch = batches.micro_batch(i);
    const model::PackedBatch packed =
        model::prepare_batch(batch, decoder.rope(), decoder.batch_target(), randomness,
                             batch_options(objective, is_pinned));
    model::MicroBatchRun run(packed, model::PassValues::kTrained);
    stage.forward(run);
    const at::Tensor losses = stage.label_losses(run);
    const std::vector<int64_t> places = places_of_rows(batch, of_documents);
    if (!counts || places.empty()) continue;
    all.index_copy_(0, at::tensor(places, at::kLong).to(all.device()),
                    -losses.narrow(0, 0, std::ssize(places)).to(at::kFloat));
  }
  comm.world().all_reduce(all);  // each label is of one rank, and zero on the others
  all = all.to(at::kCPU);
  return {all.const_data_ptr<float>(), all.const_data_ptr<float>() + all.numel()};
}

}  // namespace sftrun::train
