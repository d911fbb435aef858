#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sftrun/core/tensor_slice.h"

namespace sftrun::layers {

/// The ranks of a tensor-parallel group (arXiv:1909.08053). They compute the same tokens, each with a
/// part of the matrices, and make the same calls in the same order.
class TensorRanks {
 public:
  TensorRanks() = default;
  TensorRanks(const TensorRanks&) = delete;
  TensorRanks& operator=(const TensorRanks&) = delete;
  virtual ~TensorRanks() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Sums `values` over the ranks, in place.   @param values contiguous, of equal shape on all ranks
  virtual void sum(const at::Tensor& values) const = 0;
  /// @param values contiguous, of equal shape on all ranks   @return [size, …], by rank
  virtual at::Tensor gather(const at::Tensor& values) const = 0;
};

/// A part of a tensor: a view if it is one range, else a copy.
at::Tensor part_of(const at::Tensor& whole, const TensorSlice& slice);
/// Copies a part to its place in the whole tensor.
void put_part(const at::Tensor& whole, const TensorSlice& slice, const at::Tensor& part);

}  // namespace sftrun::layers
