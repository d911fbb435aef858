#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>

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
    for (const spec::RopeSpec& rope : ropes) tables_.push_back({rope, {}, {}});
  }
  /// Fills context.ropes for the documents of `context`.
  /// @param positions [T] int64 of each token in its document, on the device
  void fill(kernels::BatchContext& context, const at::Tensor& positions);
  /// The length of a sequence past which all its positions turn otherwise (LongRoPE), so that what
  /// was computed of it is void; 0: there is none.
  int64_t switches_after() const;
  /// Rows of single positions, each the last of its sequence so far (generation).
  void fill_positions(kernels::BatchContext& context, const std::vector<int64_t>& positions,
                      at::Device device);

 private:
  struct Table {
    spec::RopeSpec rope;
    kernels::RopeAngles angles;     // of positions from 0 on, on CPU
    kernels::RopeAngles on_device;  // a copy, made when `angles` has grown
    void grow(int64_t positions);
    kernels::RopeAngles on(at::Device device);
    /// Of ropes whose angles depend on the length of a document.
    kernels::RopeAngles of_lengths(const std::vector<int32_t>& cu_seqlens) const;
    kernels::RopeAngles of_positions(const std::vector<int64_t>& positions) const;
  };
  std::vector<Table> tables_;
};

/// Where micro-batches go: a device, and on CUDA the stream that copies them there. One for a
/// model: LibTorch's allocator keeps memory for each stream.
struct BatchTarget {
  // NOLINTNEXTLINE(google-explicit-constructor): a device is one
  BatchTarget(at::Device to);
  at::Device device;
  std::optional<c10::Stream> copies;
};

/// @param batch as formed by data::make_batch; may be empty (T = 0)
/// @param is_pinned of CUDA: copied from page-locked memory beside other work, and the host does
/// not wait
PackedBatch prepare_batch(const data::Batch& batch, RopeCache& rope, const BatchTarget& target,
                          const Randomness& randomness, bool is_pinned = true);

}  // namespace sftrun::model
