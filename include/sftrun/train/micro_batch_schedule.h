#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/example.h"
#include "sftrun/model/decoder.h"
#include "sftrun/model/packed_batch.h"
#include "sftrun/model/pass_graphs.h"
#include "sftrun/parallel/strategy.h"

/// The order in which the micro-batches of an optimizer step pass the stages of this rank.
namespace sftrun::train {

/// What one step computes on this rank.
struct StepWork {
  int64_t num_micro_batches = 1;  ///< gradient accumulation
  /// The micro-batch of an index in [0, num_micro_batches); it may be empty.
  std::function<data::Batch(int64_t)> micro_batch;
  model::Randomness randomness;
  double grad_scale = 1;                 ///< factor of the gradient of the sum of token losses
  std::optional<double> aux_grad_scale;  ///< the same of the routers' load-balancing loss
};

/// Results of this rank: fp64 scalars on the device, one per micro-batch.
struct StepSums {
  std::vector<at::Tensor> losses, aux_losses;  ///< unscaled
  int64_t label_tokens = 0;
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

/// One stage with all units: the micro-batches pass one after the other.
/// @param decoder, hooks must outlive the schedule
std::unique_ptr<MicroBatchSchedule> one_stage_schedule(model::Decoder& decoder,
                                                       parallel::Strategy& strategy,
                                                       const config::TrainConfig& config);

/// Converts `train.cuda_graphs`.
model::GraphUse graph_use(config::CudaGraphs choice);

}  // namespace sftrun::train
