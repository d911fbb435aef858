#pragma once

#include <cstdint>
#include <memory>

#include "sftrun/train/lasting_fault.h"
#include "sftrun/train/lost_media.h"
#include "sftrun/train/micro_batch_schedule.h"
#include "sftrun/train/objective.h"
#include "sftrun/train/trainer_inputs.h"

namespace sftrun::train {

/// The passes of a step over this rank's part of the global batch (`micro_batch_of`). Not
/// thread-safe.
class StepPasses {
 public:
  /// @param inputs must outlive this object
  explicit StepPasses(const TrainerInputs& inputs);

  /// Queues forward and backward passes; adds to the gradients, which are divided by the number of
  /// terms of the global batch.   @param step counted from 0
  /// @throws DataError naming the record for an image or features that cannot be read, unless `loses_media` is to be called
  StepSums run(data::StepBatch& global_batch, int64_t step, double loss_scale);
  /// With data.bad_records: skip, records lose their labels if their images or features cannot be read. Known ones, before the first `run`:
  void leave_out_lost(data::StepBatch& global_batch) { lost_.add_known(records_of(global_batch)); }
  /// After `run`, on all ranks: whether further records lost theirs. Then the gradients are those of other terms, and the step must run again.
  bool loses_media(data::StepBatch& global_batch, int64_t step);
  int64_t num_lost_records() const { return lost_.num_records(); }
  /// The longest micro-batch on every rank, as often as a step has micro-batches at the same time,
  /// so that a lack of memory shows at once, and those that are largest by `TrainerInputs::tried_by`. Their gradients are thrown away by the next step, and
  /// dropout depends on the step only, so that the run is the same to the bit. Waits for the device.
  void try_longest(int64_t step, double loss_scale);

  const Objective& objective() const { return objective_; }
  /// Terms of the objective over all ranks.
  double num_terms(const data::StepBatch& global_batch) const;
  /// What the terms and other divisors of the global batch are.
  BatchCounts totals_of(const data::StepBatch& global_batch) const;
  /// Over all ranks, without micro-batches that are empty in a short last batch.
  double num_micro_batches(const data::StepBatch& global_batch) const;
  /// Coefficient of the routers' load-balancing loss; 0: no such loss.
  double aux_coef() const { return in_.config.train.router_aux_loss_coef.value_or(0); }
  int64_t micro_batch_size() const { return *in_.config.train.batch_size.value; }
  /// Logs how the passes were launched.
  void log_use() const { schedule_->log_use(); }

 private:
  MediaRecords records_of(data::StepBatch& global_batch) const;
  template <class DealOf>
  void estimate_divergence_of(const data::StepBatch& batch, const DealOf& deal_of, StepWork& work);
  /// The embeddings of the global batch, and the gradients of its loss by them.
  /// @return text_numbers; undefined: the objective has no embeddings
  at::Tensor embed(const data::StepBatch& batch, StepWork& work);
  /// For later steps on the same examples.
  void keep_label_logps(const data::StepBatch& batch, int64_t step, const StepWork& work);
  /// Warns of batches from which nothing is learnt.   @param texts of `embed`
  void note_alike(const at::Tensor& texts, int64_t step);
  template <class Run>
  StepSums run_noting(data::StepBatch& global_batch, const Run& run);
  void try_batch(data::StepBatch& batch, int64_t step, double loss_scale);
  StepWork work_of(const data::StepBatch& global_batch, int64_t step, double loss_scale) const;

  const TrainerInputs& in_;
  Objective objective_;
  std::unique_ptr<MicroBatchSchedule> schedule_;
  model::Stage stage_;  // for passes beside those of the schedule
  LostMedia lost_;
  LastingFault alike_;
};

}  // namespace sftrun::train
