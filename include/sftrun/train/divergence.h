#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "sftrun/data/example.h"
#include "sftrun/model/stage.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/mesh.h"
#include "sftrun/train/objective.h"

/// How far the trained model is from its reference model, as KTO estimates it.
namespace sftrun::train {

/// This rank's part of the mismatched documents of a global batch (data::make_mismatched_batch).
struct MismatchedBatches {
  int64_t num_micro_batches = 0;  ///< the same on all ranks
  std::function<data::Batch(int64_t)> micro_batch;
};

/// z_0 of arXiv:2402.01306, section 4.1: the mean over mismatched documents of log p minus that of the
/// reference model, at least 0. The mean is over the global batch, on whatever ranks and micro-batches
/// it is; TRL's is over a micro-batch. Forward passes alone; the host does not wait for the device.
/// @return scalar fp64 on the device, the same on all ranks that have the head
at::Tensor estimate_divergence(const model::Stage& stage, const Objective& objective,
                               const MismatchedBatches& batches, bool is_pinned,
                               parallel::Communicator& comm, const parallel::Mesh& mesh);

}  // namespace sftrun::train
