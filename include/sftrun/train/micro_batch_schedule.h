#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/activity.h"
#include "sftrun/data/example.h"
#include "sftrun/model/decoder.h"
#include "sftrun/model/packed_batch.h"
#include "sftrun/model/pass_graphs.h"
#include "sftrun/model/stage.h"
#include "sftrun/parallel/strategy.h"
#include "sftrun/train/objective.h"

/// The order in which the micro-batches of an optimizer step pass the stages of this rank.
namespace sftrun::train {

/// What one step computes on this rank.
struct StepWork {
  int64_t num_micro_batches = 1;  ///< gradient accumulation
  /// The micro-batch of an index in [0, num_micro_batches); it may be empty.
  std::function<data::Batch(int64_t)> micro_batch;
  model::Randomness randomness;
  GlobalBatch global_batch;
  double grad_scale = 1;                 ///< factor of the gradient of the objective's sum
  std::optional<double> aux_grad_scale;  ///< the same of the routers' load-balancing loss
  Activity* activity = nullptr;          ///< records the passes; may be null
};

/// Results of this rank: fp64 scalars on the device.
struct StepSums {
  std::vector<at::Tensor> losses, aux_losses;  ///< per micro-batch, unscaled
  std::vector<at::Tensor> metrics;             ///< sums over micro-batches
  std::vector<std::string> metric_names;       ///< of `metrics`
  at::Tensor confusion;                        ///< sum of ScoreValue::confusion; undefined: none
  double num_terms = 0;                        ///< of the objective, in these micro-batches
};

class MicroBatchSchedule {
 public:
  MicroBatchSchedule() = default;
  MicroBatchSchedule(const MicroBatchSchedule&) = delete;
  MicroBatchSchedule& operator=(const MicroBatchSchedule&) = delete;
  virtual ~MicroBatchSchedule() = default;
  /// Queues forward and backward passes; adds to the parameters' gradients.
  virtual StepSums run(const StepWork& work) = 0;
  /// Logs how the passes were launched.
  virtual void log_use() const {}
};

/// The units of this rank. The strategy must outlive the stage.
model::Stage stage_of(model::Decoder& decoder, parallel::Strategy& strategy);

/// With all units on this rank, the micro-batches pass one after the other, or unit by unit
/// (`parallel.fetch`); with a stage of a pipeline, several are under way.
/// @param decoder, strategy, objective must outlive the schedule
std::unique_ptr<MicroBatchSchedule> make_schedule(model::Decoder& decoder,
                                                  parallel::Strategy& strategy,
                                                  const Objective& objective,
                                                  const config::RunConfig& config);

/// What an objective counts its terms from.
BatchCounts counts_of(const data::Batch& batch);
/// The parts of a loss that the head has computed; zeros where another stage has the head, or the
/// micro-batch is empty. None of an objective whose loss is of one part.
/// @param loss of `Stage::loss`
std::vector<ObjectiveMetric> head_metrics(const model::MicroBatchRun& run, const at::Tensor& loss,
                                          const Objective& objective);
/// Adds the metrics of a micro-batch.
void add_metrics(const std::vector<ObjectiveMetric>& metrics, StepSums& sums);
/// The forward pass of `run`, that of the reference model if the objective reads it, and the
/// objective's value for the micro-batch.
/// @pre the objective needs sums over documents; the batch was made with
/// `batch_options`
ObjectiveValue forward_documents(const model::Stage& stage, model::MicroBatchRun& run,
                                 const Objective& objective, const GlobalBatch& global_batch);
/// Forward pass, loss and, if `run` trains, the head's backward pass, of an objective on scores.
ScoreValue score_documents(const model::Stage& stage, model::MicroBatchRun& run,
                           const Objective& objective, bool wants_confusion = false);
/// Forward pass and, if `run` trains, the head's backward pass with the gradients of `embedded`.
/// @return loss and metrics of the examples whose documents the micro-batch has
ScoreValue embed_documents(const model::Stage& stage, model::MicroBatchRun& run,
                           const Objective& objective, const std::vector<int64_t>& places,
                           const EmbeddedBatch& embedded);
/// Sum over documents of log p minus that of the reference model: scalar fp64.
at::Tensor log_ratio_sum(const model::Stage& stage, const model::PackedBatch& batch,
                         const Objective& objective);
/// What the objective reads of a batch.
model::BatchOptions batch_options(const Objective& objective, bool is_pinned);

/// How a micro-batch gets ready for a pass of the objective.
struct Preparation {
  model::Randomness randomness = {};
  bool is_pinned = true;
  Activity* activity = nullptr;  ///< records the teacher's pass; may be null
};
/// The micro-batch on the device, with what the objective reads of it. A teacher beside the student
/// reads it first: a forward pass of that model, so all ranks call it for the same micro-batches.
/// @throws as model::prepare_batch
model::PackedBatch prepare_for(const Objective& objective, const data::Batch& batch,
                               model::Decoder& decoder, const Preparation& how);

/// Converts `train.cuda_graphs`.
model::GraphUse graph_use(config::CudaGraphs choice);

}  // namespace sftrun::train
