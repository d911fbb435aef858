#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sftrun/data/example.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::model {

/// A micro-batch on its device, as the decoder takes it. T tokens, N of them with a label.
struct PackedBatch {
  at::Tensor tokens;      ///< [T] int64
  at::Tensor label_rows;  ///< [N] int64: positions that carry a label, ascending
  at::Tensor labels;      ///< [N] int32
  kernels::BatchContext context;
  int64_t num_tokens() const { return tokens.defined() ? tokens.size(0) : 0; }
};

struct Randomness {
  uint64_t seed = 0;
  uint32_t step = 0;
  bool training = false;
};

/// Cosines and sines of rotary embeddings by position, computed once and grown on demand.
class RopeCache {
 public:
  explicit RopeCache(spec::ArchSpec arch) : arch_(std::move(arch)) {}
  /// Fills context.cos and context.sin [T, head_dim / 2] for documents of the given cumulative
  /// lengths, each from position 0.
  void fill(kernels::BatchContext& context, at::Device device);
  /// The row of one position in a sequence that is `seq_len` long so far (generation).
  void fill_positions(kernels::BatchContext& context, const std::vector<int64_t>& positions,
                      at::Device device);

 private:
  void grow(int64_t positions);
  spec::ArchSpec arch_;
  at::Tensor cos_, sin_;  // [positions, head_dim / 2] on CPU
};

/// @param batch as formed by data::make_batch; may be empty (T = 0)
PackedBatch prepare_batch(const data::Batch& batch, RopeCache& rope, at::Device device,
                          const Randomness& randomness);

}  // namespace sftrun::model
