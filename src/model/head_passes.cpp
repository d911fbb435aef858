#include "head_passes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "unit_passes.h"

namespace sftrun::model {
namespace {

layers::BatchContext head_rows(Decoder& decoder, const MicroBatchRun& run) {
  const auto& lora = decoder.head().linear.lora;
  if (run.trains && lora && lora->dropout > 0)
    return layers::dropout_rows(run.context, run.batch.label_rows);
  layers::BatchContext rows;
  rows.adapters = run.context.adapters;
  return rows;
}

}  // namespace

at::Tensor head_loss(Decoder& decoder, MicroBatchRun& run) {
  using layers::HeadGrad;
  const PackedBatch& batch = run.batch;
  const bool trains_layers = needs_input_gradient(decoder, run, decoder.head_unit());
  const HeadGrad wanted = trains_layers                                 ? HeadGrad::kInput
                          : run.trains && !decoder.parameters().empty() ? HeadGrad::kParameters
                                                                        : HeadGrad::kNone;
  const at::Tensor hidden = std::exchange(run.hidden, {});
  const kernels::GradScale scale =
      run.trains
          ? kernels::GradScale{run.options.grad_scale, batch.grad_factor, run.options.row_factors}
          : kernels::GradScale{1.0};
  const layers::HeadLoss result =
      decoder.backend().head_loss(hidden.index_select(0, batch.label_rows), decoder.head(),
                                  batch.labels, scale, wanted, head_rows(decoder, run));
  if (wanted == HeadGrad::kInput) {
    const int64_t spare = decoder.layers().back().feed_forward.joint_down.spare();
    run.grad = at::zeros({hidden.size(0), hidden.size(1) + spare}, hidden.options())
                   .narrow(1, 0, hidden.size(1));
    run.grad.index_copy_(0, batch.label_rows, result.grad_input);
  }
  return result.loss_sum;
}

at::Tensor losses_of_labels(Decoder& decoder, const MicroBatchRun& run) {
  return decoder.backend().label_losses(run.hidden.index_select(0, run.batch.label_rows),
                                        decoder.head(), run.batch.labels, head_rows(decoder, run));
}

void count_correct(Decoder& decoder, const MicroBatchRun& run, at::Tensor& count) {
  constexpr int64_t kRows = 256;
  const int64_t num_labels = run.batch.labels.numel();
  for (int64_t first = 0; first < num_labels; first += kRows) {
    const int64_t num_rows = std::min(kRows, num_labels - first);
    const at::Tensor rows =
        run.hidden.index_select(0, run.batch.label_rows.narrow(0, first, num_rows));
    const at::Tensor likeliest = layers::logits_of(decoder.head(), rows).argmax(-1);
    count += (likeliest == run.batch.labels.narrow(0, first, num_rows)).sum();
  }
}

}  // namespace sftrun::model
