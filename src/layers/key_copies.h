#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sftrun/layers/sequence_share.h"

namespace sftrun::layers {

/// Heads of keys among ranks that share sequences: each rank has some of them, or consecutive ranks have
/// copies of one (decision 62).
class KeyCopies {
 public:
  /// All heads are here.
  KeyCopies() = default;
  /// @pre the number of ranks divides `num_heads`, or is a multiple of it   @param share outlives it
  KeyCopies(const SequenceShare& share, int64_t num_heads, int64_t head_dim);

  int64_t copies() const { return copies_; }
  int64_t num_own_heads() const { return num_own_heads_; }
  /// @param rows [rows of this rank, heads * head_dim]   @return [T, own heads * head_dim]
  at::Tensor columns_of(const at::Tensor& rows) const;
  /// Of a gradient the sum over the copies of a head.
  /// @param columns [T, own heads * head_dim]   @return [rows of this rank, heads * head_dim]
  at::Tensor rows_of(const at::Tensor& columns) const;

 private:
  const SequenceShare* share_ = nullptr;
  int64_t head_dim_ = 0, copies_ = 1, num_own_heads_ = 0;
};

}  // namespace sftrun::layers
