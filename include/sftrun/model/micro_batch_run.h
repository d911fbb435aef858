#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sftrun/core/activity.h"
#include "sftrun/layers/backend.h"
#include "sftrun/layers/projector.h"
#include "sftrun/model/packed_batch.h"
#include "sftrun/model/saved_inputs.h"

/// A micro-batch on its way through the units of a decoder.
namespace sftrun::model {

/// The routers' load-balancing loss of one batch (`layers::RouterBalance`).
struct AuxLoss {
  double grad_scale = 0;  ///< factor of its gradient
  at::Tensor value;       ///< result: fp64 scalar, unscaled
};

/// How `Stage::forward_backward` treats a micro-batch.
struct PassOptions {
  double grad_scale = 1;  ///< factor of the loss's gradient
  /// [N] fp32: a further factor for each labelled row; undefined: the weights of the batch's labels
  at::Tensor row_factors;
  layers::ScoreLoss score_loss;  ///< of a head of scores
  AuxLoss* aux = nullptr;        ///< not null: the routers' balance is counted
  /// The gradients are complete after this micro-batch: `UnitHooks::gradients_ready` is called.
  bool completes_gradients = true;
  Activity* activity = nullptr;  ///< records which pass runs; may be null
};

/// The values that a forward pass reads.
enum class PassValues : uint8_t {
  kTrained,
  kBase,   ///< without adapters
  kStart,  ///< those of the start in place of the trained ones (`UnitHooks::read_start`)
};

/// State of one micro-batch between its passes through a stage. Several micro-batches may be under
/// way at a time (pipeline parallelism). It stays where it is, as the layers' saved states refer to
/// its context.
struct MicroBatchRun {
  /// A forward pass without gradients.
  /// @param packed must outlive the run
  explicit MicroBatchRun(const PackedBatch& packed, PassValues values = PassValues::kTrained)
      : batch(packed), values(values), context(packed.context) {
    context.adapters = values != PassValues::kBase;
  }
  /// A forward pass whose scores `loss` receives.   @pre the decoder has a head of scores
  MicroBatchRun(const PackedBatch& packed, layers::ScoreLoss loss)
      : MicroBatchRun(packed, PassValues::kTrained) {
    options.score_loss = std::move(loss);
  }
  /// A forward pass that a backward pass follows.
  MicroBatchRun(const PackedBatch& packed, const PassOptions& options)
      : batch(packed), trains(true), options(options), context(packed.context) {}
  explicit MicroBatchRun(PackedBatch&&,
                         PassValues = PassValues::kTrained) = delete;  // it keeps a reference
  MicroBatchRun(PackedBatch&&, const PassOptions&) = delete;
  MicroBatchRun(const MicroBatchRun&) = delete;
  MicroBatchRun& operator=(const MicroBatchRun&) = delete;
  bool is_empty() const { return batch.num_tokens() == 0; }

  const PackedBatch& batch;
  bool trains = false;
  PassValues values = PassValues::kTrained;
  PassOptions options;
  layers::BatchContext context;
  /// Output of the last unit that ran [T, hidden].
  at::Tensor hidden;
  /// Of the head's loss, fp64 scalars; undefined without a teacher, or before it ran.
  at::Tensor divergence_sum, cross_entropy_sum;
  /// Gradient of the output of the unit that runs its backward pass next.
  at::Tensor grad;
  /// Per layer of the model: its saved state, or with gradient checkpointing its input.
  std::vector<std::unique_ptr<layers::LayerRun>> layers;
  SavedInputs inputs;
  layers::PerLayerRun per_layer;
  /// Of the batch's images; null: it has none.
  std::unique_ptr<layers::TowerPass> tower;
  /// Of the batch's features, in the order of `PackedBatch::features`.
  std::deque<layers::ProjectorPass> projectors;
  std::vector<at::Tensor> projector_gradients;
  /// Gradients of the features that DeepStack added to the outputs of the first layers.
  std::vector<at::Tensor> deepstack_gradients;
};

/// Micro-batches that pass each unit one after the other, so that the unit is brought to the device
/// once for all of them.
using MicroBatchRuns = std::span<MicroBatchRun* const>;

}  // namespace sftrun::model
