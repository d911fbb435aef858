#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>

#include "sftrun/data/example.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/model/batch_sizes.h"
#include "sftrun/model/rope_cache.h"

namespace sftrun::model {

/// A micro-batch on its device, as the decoder takes it. T tokens, N of them with a label.
struct PackedBatch {
  at::Tensor staged;  ///< bytes: all that was copied to the device, of which those below are parts
  at::Tensor tokens;  ///< [T] int64
  at::Tensor label_rows;   ///< [N] int64: positions that carry a label, ascending
  at::Tensor labels;       ///< [N] int32
  at::Tensor grad_factor;  ///< [1] fp32: the loss's gradient is multiplied by it; undefined: 1
  std::optional<BatchSizes> sizes;  ///< to which the batch was filled up
  kernels::BatchContext context;
  int64_t num_tokens() const { return tokens.defined() ? tokens.size(0) : 0; }
};

struct Randomness {
  uint64_t seed = 0;
  uint32_t step = 0;
  bool training = false;
};

/// Where micro-batches go: a device, and on CUDA the stream that copies them there. One for a
/// model: LibTorch's allocator keeps memory for each stream.
struct BatchTarget {
  // NOLINTNEXTLINE(google-explicit-constructor): a device is one
  BatchTarget(at::Device to);
  at::Device device;
  std::optional<c10::Stream> copies;
  bool cuts_chunks = false;  ///< the model has delta nets: a batch brings its `Chunks`
};

/// How a batch is brought to a GPU.
struct BatchOptions {
  /// Copied from page-locked memory beside other work, and the host does not wait.
  bool is_pinned = true;
  std::optional<double> grad_factor = {};  ///< `PackedBatch::grad_factor`
  /// Filled up to these: with tokens that carry no label, rows without a label, empty documents.
  std::optional<BatchSizes> sizes = {};
};

/// @param batch as formed by data::make_batch; may be empty (T = 0)
PackedBatch prepare_batch(const data::Batch& batch, RopeCache& rope, const BatchTarget& target,
                          const Randomness& randomness, const BatchOptions& options = {});

}  // namespace sftrun::model
