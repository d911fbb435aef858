#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/plan/blocks.h"
#include "sftrun/spec/arch_spec.h"

/// What a training step needs beside weights, gradients and optimizer state: a walk over the rows of
/// the model's blocks (blocks.h).
namespace sftrun::plan {

/// Bytes of one micro-batch at the moment that needs most. The head and the backward pass of a layer
/// follow each other.
struct StepMemory {
  int64_t kept =
      0;  ///< for the backward pass: what layers save, or with recomputation their inputs
  /// Backward pass of the layer that needs most, recomputed state included, less what the layers
  /// after it kept.
  int64_t layer = 0;
  int64_t head = 0;       ///< hidden states and logits of a chunk of rows
  int64_t workspace = 0;  ///< the batch itself; GPU: matrices that are unpacked for a product
  int64_t images =
      0;  ///< patches in fp32, their positions and angles, and what the tower makes of them
  int64_t tower_kept = 0;  ///< as `kept`, of the tower and the mergers
  /// The unit of the tower that needs most, forward or backward, less what is not there then of what is kept.
  int64_t tower = 0;
  /// The forward pass of a teacher beside the model, before the model's own, with what earlier
  /// micro-batches of a pipeline keep meanwhile.
  int64_t teacher = 0;
  int64_t peak() const {
    return std::max(kept + tower_kept + std::max({layer, head, tower}) + images, teacher) +
           workspace;
  }
};

/// The sizes that one device has of each layer: of tensor parallelism its part, else all.
spec::ArchSpec device_arch(const spec::ArchSpec& arch, const config::Axes& axes);

/// Of a pipeline: the stage that keeps most.
StepMemory step_memory(const spec::ArchSpec& arch, const config::RunConfig& config,
                       const MicroBatchShape& shape);

/// Activations of one micro-batch with a value of train.gradient_checkpointing, in bytes.
struct LayerBytes {
  int64_t kept = 0;         ///< of all layers together, for the backward pass
  int64_t in_backward = 0;  ///< more, in the backward pass of one layer
};
/// Layers of the same kind.
struct LayerKind {
  std::string name;  ///< "attention, MLP"
  int64_t layers = 0;
  std::map<config::Checkpointing, LayerBytes> bytes;  ///< of every value
};
/// The whole model's layers by kind, in the order in which the kinds first appear. Layers of one
/// kind may differ in size (Gemma 4); `in_backward` is that of the largest.
std::vector<LayerKind> layer_kinds(const spec::ArchSpec& arch, const config::RunConfig& config,
                                   const MicroBatchShape& shape);

}  // namespace sftrun::plan
