#include "step_passes.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "sftrun/core/log.h"
#include "sftrun/kernels/profile_range.h"
#include "sftrun/train/divergence.h"
#include "sftrun/train/embeddings.h"
#include "sftrun/train/label_logps.h"
#include "sftrun/train/micro_batch.h"

namespace sftrun::train {

StepPasses::StepPasses(const TrainerInputs& inputs)
    : in_(inputs),
      objective_(in_.config.train, in_.teacher),
      schedule_(make_schedule(*in_.decoder, *in_.strategy, objective_, in_.config)),
      stage_(stage_of(*in_.decoder, *in_.strategy)),
      lost_(*in_.comm, in_.config.data.bad_records) {}

/// Without its micro-batches.
StepWork StepPasses::work_of(const data::StepBatch& global_batch, int64_t step,
                             double loss_scale) const {
  StepWork work;
  work.activity = in_.hooks.activity;
  work.randomness = {static_cast<uint64_t>(in_.config.train.seed), static_cast<uint32_t>(step),
                     /*training=*/objective_.info().has_dropout};
  work.global_batch.counts = totals_of(global_batch);
  work.grad_scale = loss_scale / num_terms(global_batch);
  if (aux_coef() > 0)
    work.aux_grad_scale = loss_scale * aux_coef() / num_micro_batches(global_batch);
  return work;
}

MediaRecords StepPasses::records_of(data::StepBatch& global_batch) const {
  return {.bins = global_batch.bins,
          .examples = global_batch.examples,
          .place_of =
              [&](int64_t example) {
                return in_.batches->file_of(global_batch, example)
                    .where(global_batch.examples.stored(example).number);
              },
          .lost = global_batch.lost,
          .label_tokens = &global_batch.label_tokens};
}

bool StepPasses::loses_media(data::StepBatch& global_batch, int64_t step) {
  return lost_.agree(records_of(global_batch), fmt::format("step {}", step + 1));
}

at::Tensor StepPasses::embed(const data::StepBatch& batch, StepWork& work) {
  if (!objective_.info().embeds()) return {};
  const EmbeddedMicroBatches batches{
      .num_micro_batches = work.num_micro_batches,
      .micro_batch = work.micro_batch,
      .num_texts = data::counts_of(batch.examples, batch.bins).documents};
  const at::Tensor embeddings =
      embed_texts(stage_, objective_, batches, work.randomness,
                  in_.config.train.dataloader_pin_memory, *in_.comm, in_.strategy->mesh());
  at::Tensor texts = text_numbers(batch.examples, batch.bins);
  work.global_batch.embedded = std::make_shared<const EmbeddedBatch>(
      contrast(embeddings, texts, in_.config.train, /*with_gradients=*/true));
  return texts;
}

void StepPasses::keep_label_logps(const data::StepBatch& batch, int64_t step,
                                  const StepWork& work) {
  if (!in_.batches->wants_label_logps(step)) return;
  const LabelledMicroBatches batches{.num_micro_batches = work.num_micro_batches,
                                     .micro_batch = work.micro_batch,
                                     .examples = batch.examples,
                                     .bins = batch.bins};
  in_.batches->keep_label_logps(label_logps_of(stage_, objective_, batches, work.randomness,
                                               in_.config.train.dataloader_pin_memory, *in_.comm,
                                               in_.strategy->mesh()));
}

void StepPasses::note_alike(const at::Tensor& texts, int64_t step) {
  if (!texts.defined()) return;
  const bool is_lasting = alike_.add(tells_nothing_apart(texts, in_.config.train.sequences()));
  if (is_lasting && in_.is_main())
    log::warn(
        "step {}: for {} steps the texts of a batch that fit its queries were all the same, or the "
        "queries were, so that there was nothing to tell apart and nothing is learnt: set "
        "data.shuffle, take a larger batch, or add texts that do not fit (\"negative\")",
        step + 1, LastingFault::kSteps);
}

template <class DealOf>
void StepPasses::estimate_divergence_of(const data::StepBatch& batch, const DealOf& deal_of,
                                        StepWork& work) {
  if (!objective_.info().needs_mismatched) return;
  const MismatchedBatches batches{
      .num_micro_batches = work.num_micro_batches, .micro_batch = [&](int64_t micro_step) {
        return mismatched_batch_of(in_.strategy->mesh(), batch.examples, batch.bins,
                                   deal_of(micro_step), in_.config.model.max_seq_len, batch.lost);
      }};
  work.global_batch.divergence =
      estimate_divergence(stage_, objective_, batches, in_.config.train.dataloader_pin_memory,
                          *in_.comm, in_.strategy->mesh());
}

template <class Run>
StepSums StepPasses::run_noting(data::StepBatch& global_batch, const Run& run) {
  return lost_.note_during(*in_.decoder, records_of(global_batch), run);
}

StepSums StepPasses::run(data::StepBatch& global_batch, int64_t step, double loss_scale) {
  StepWork work = work_of(global_batch, step, loss_scale);
  work.num_micro_batches = *in_.config.train.grad_accum.value;
  const auto deal_of = [&](int64_t micro_step) {
    return MicroBatchDeal{
        .micro_step = micro_step, .size = micro_batch_size(), .dealt = &global_batch.deal};
  };
  work.micro_batch = [&](int64_t micro_step) {
    const kernels::WorkRange loading(in_.hooks.activity, Work::kDataLoader);
    return micro_batch_of(in_.strategy->mesh(), global_batch.examples, global_batch.bins,
                          deal_of(micro_step), global_batch.lost);
  };
  return run_noting(global_batch, [&] {
    estimate_divergence_of(global_batch, deal_of, work);
    note_alike(embed(global_batch, work), step);
    keep_label_logps(global_batch, step, work);
    return schedule_->run(work);
  });
}

void StepPasses::try_longest(int64_t step, double loss_scale) {
  const parallel::CollectiveCounts counts = in_.comm->counts();
  std::vector<data::StepBatch> largest = in_.batches->largest(micro_batch_size(), in_.tried_by);
  for (data::StepBatch& batch : largest) try_batch(batch, step, loss_scale);
  in_.comm->set_counts(counts);
}

void StepPasses::try_batch(data::StepBatch& batch, int64_t step, double loss_scale) {
  const int64_t batch_size = micro_batch_size(), all = *in_.config.train.grad_accum.value;
  StepWork work = work_of(batch, step, loss_scale);
  work.num_micro_batches = in_.config.parallel.fetch == config::Fetch::kPerStep
                               ? all
                               : std::min<int64_t>(all, in_.strategy->mesh().sizes().pp);
  const auto deal_of = [&](int64_t) {
    return MicroBatchDeal{.size = batch_size, .is_same_on_all = true};
  };
  work.micro_batch = [&](int64_t) {
    return micro_batch_of(in_.strategy->mesh(), batch.examples, batch.bins, deal_of(0));
  };
  in_.strategy->begin_step();
  const StepSums sums = run_noting(batch, [&] {
    estimate_divergence_of(batch, deal_of, work);
    embed(batch, work);
    return schedule_->run(work);
  });
  lost_.forget_noted();  // the step that has them comes later
  in_.strategy->finish_step();
  for (const at::Tensor& loss : sums.losses) loss.item<double>();  // waits for the device
}

double StepPasses::num_micro_batches(const data::StepBatch& global_batch) const {
  const int64_t size = micro_batch_size();
  return static_cast<double>((static_cast<int64_t>(global_batch.bins.size()) + size - 1) / size);
}

BatchCounts StepPasses::totals_of(const data::StepBatch& global_batch) const {
  BatchCounts counts = data::counts_of(global_batch.examples, global_batch.bins);
  counts -= data::counts_among(global_batch.examples, global_batch.bins, global_batch.lost);
  return counts;
}

double StepPasses::num_terms(const data::StepBatch& global_batch) const {
  const double terms = objective_.count_terms(totals_of(global_batch));
  return terms > 0 ? terms : 1;  // of a batch that lost all its labels, whose loss is 0
}

}  // namespace sftrun::train
