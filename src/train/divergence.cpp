#include "sftrun/train/divergence.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "sftrun/train/micro_batch_schedule.h"

namespace sftrun::train {

at::Tensor estimate_divergence(const model::Stage& stage, const Objective& objective,
                               const MismatchedBatches& batches, bool is_pinned,
                               parallel::Communicator& comm, const parallel::Mesh& mesh) {
  const at::NoGradGuard no_grad;
  model::Decoder& decoder = stage.decoder();
  const auto options = at::TensorOptions(decoder.batch_target().device).dtype(at::kDouble);
  at::Tensor ratios = at::zeros({}, options);
  double documents = 0;
  for (int64_t i = 0; i < batches.num_micro_batches; ++i) {
    const data::Batch batch = batches.micro_batch(i);
    const model::PackedBatch packed = model::prepare_batch(
        batch, decoder.rope(), decoder.batch_target(), {}, batch_options(objective, is_pinned));
    ratios += log_ratio_sum(stage, packed, objective);
    documents += static_cast<double>(batch.document_keys.size());
  }
  const at::Tensor own = at::stack({ratios, at::full({}, documents, options)});
  const at::Tensor of_ranks = comm.all_gather_tensor(own);
  at::Tensor all = at::zeros_like(own);
  for (int rank = 0; rank < comm.world_size(); ++rank)
    if (mesh.counts_loss_of(rank)) all += of_ranks[rank];
  return (all[0] / all[1].clamp_min(1)).clamp_min(0);
}

}  // namespace sftrun::train
