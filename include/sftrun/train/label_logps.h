#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sftrun/data/batch_plan.h"
#include "sftrun/model/stage.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/mesh.h"
#include "sftrun/train/objective.h"

/// What the model finds of the labels of a step before it is trained on them: the old log-probabilities
/// of GRPO's further steps on the same answers, computed as training computes them and not as they were
/// sampled (trl/trainer/grpo_trainer.py, `old_per_token_logps`).
namespace sftrun::train {

/// This rank's micro-batches of a global batch.
struct LabelledMicroBatches {
  int64_t num_micro_batches = 0;
  std::function<data::Batch(int64_t)> micro_batch;  ///< may be empty
  const data::ExampleStore& examples;               ///< of the global batch, as its bins
  const std::vector<data::Bin>& bins;
};

/// Log p of all labels of the global batch, in its order; 0 of labels that are lost. The same on every rank,
/// by a forward pass without saved activations.   @param randomness of the step
std::vector<float> label_logps_of(const model::Stage& stage, const Objective& objective,
                                  const LabelledMicroBatches& batches,
                                  const model::Randomness& randomness, bool is_pinned,
                                  parallel::Communicator& comm, const parallel::Mesh& mesh);

}  // namespace sftrun::train
