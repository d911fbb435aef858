#pragma once

#include <ATen/core/Tensor.h>

#include "sftrun/layers/attention.h"

namespace sftrun::layers {

/// Keys and values of the sequences of a batch.
class AttentionCache final : public LayerCache {
 public:
  AttentionCache(const kernels::AttentionShape& shape, const at::TensorOptions& options);

  uint64_t bytes_of_token() const override;
  void grow(int64_t rows, int64_t capacity) override;
  void move_row(int64_t from, int64_t to) override;

  /// Writes the tokens of a sequence from its first on.   @param k, v [T, kv_heads * head_dim]
  void store_sequence(int64_t row, const at::Tensor& k, const at::Tensor& v);
  /// Writes one token of each of the first n rows.   @param k, v [n, kv_heads * head_dim]
  /// @param positions [n] int64 of these tokens, on the device
  void store_tokens(const at::Tensor& positions, const at::Tensor& k, const at::Tensor& v);

  /// [rows, kv_heads, capacity, head_dim]
  const at::Tensor& keys() const { return keys_; }
  const at::Tensor& values() const { return values_; }

 private:
  at::Tensor keys_, values_;
};

/// softmax(q k^T * scale) v of one token of each row over the keys that it sees.
/// @param q [n, heads * head_dim]   @param cache with the tokens' own keys
/// @return [n, heads * head_dim]
at::Tensor attend_cached(const Attention& attention, const at::Tensor& q,
                         const AttentionCache& cache, StepMasks& masks);

}  // namespace sftrun::layers
