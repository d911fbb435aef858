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
  explicit RopeCache(const std::vector<spec::RopeSpec>& ropes) {
    for (const spec::RopeSpec& rope : ropes) tables_.push_back({rope, {}});
  }
  /// Fills context.ropes for documents of the given cumulative lengths, each from position 0.
  void fill(kernels::BatchContext& context, at::Device device);
  /// The length of a sequence past which all its positions turn otherwise (LongRoPE), so that what
  /// was computed of it is void; 0: there is none.
  int64_t switches_after() const;
  /// Rows of single positions, each the last of its sequence so far (generation).
  void fill_positions(kernels::BatchContext& context, const std::vector<int64_t>& positions,
                      at::Device device);

 private:
  struct Table {
    spec::RopeSpec rope;
    kernels::RopeAngles angles;  // of positions from 0 on, on CPU
    void grow(int64_t positions);
    kernels::RopeAngles of_documents(const std::vector<int32_t>& cu_seqlens, int32_t max_seqlen);
    kernels::RopeAngles of_positions(const std::vector<int64_t>& positions) const;
  };
  std::vector<Table> tables_;
};

/// @param batch as formed by data::make_batch; may be empty (T = 0)
PackedBatch prepare_batch(const data::Batch& batch, RopeCache& rope, at::Device device,
                          const Randomness& randomness);

}  // namespace sftrun::model
