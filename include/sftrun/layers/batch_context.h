#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sftrun/kernels/ops.h"
#include "sftrun/layers/balance.h"
#include "sftrun/layers/sequence_share.h"

/// Inputs of all layers beside their weights and hidden states.
namespace sftrun::layers {

/// State shared between the layers of one forward and backward pass, beside the hidden states.
struct SharedLayerState {
  struct Keys {
    at::Tensor k, v;    ///< keys and values after norm and RoPE
    at::Tensor dk, dv;  ///< gradients from the layers that reuse them; undefined: none yet
  };
  std::vector<Keys> keys;  ///< [layers]; set for layers whose keys others reuse
  at::Tensor per_layer;    ///< [T, layers, size], per-layer inputs
  at::Tensor d_per_layer;  ///< its gradient, fp32; undefined: not needed
  RouterBalance balance;
};

/// One packed batch: what operations read of it, and what the layers share.
struct BatchContext : kernels::BatchMetadata {
  /// false: the base model alone, without its LoRA adapters. Forward passes that keep nothing
  /// only: nothing can be trained then.
  bool adapters = true;
  std::shared_ptr<SharedLayerState> shared_state;  ///< null if layers share no state
  /// How ranks divide the rows, in context parallelism; null: all are here. RoPE angles and token keys
  /// are then of this rank's rows; documents, spans and chunks are of the whole micro-batch.
  std::shared_ptr<const SequenceShare> share;
};

/// A context with only the dropout inputs (seed, step, token keys) of the given rows of a
/// batch, none where dropout is off; and whether adapters are on.
/// @param rows [N] int64
BatchContext dropout_rows(const BatchContext& batch, const at::Tensor& rows);
/// The same for rows [first, first + count).
BatchContext dropout_rows(const BatchContext& batch, int64_t first, int64_t count);

}  // namespace sftrun::layers
