#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "sftrun/parallel/communicator.h"

/// Sums one flat gradient buffer over all ranks while the backward pass is running. Call
/// `group_done` when the gradients of a group are complete, from the last group to the first, then
/// `finish`.
namespace sftrun::parallel {

class GradReducer {
 public:
  /// @param ranges element range [begin, end) of each parameter group in the buffer, ascending;
  /// ranges may be empty
  /// @param bucket_cap_bytes adjacent groups are reduced in one call until they reach this size
  GradReducer(Communicator& comm, at::Tensor flat_grad,
              std::vector<std::pair<int64_t, int64_t>> ranges, int64_t bucket_cap_bytes);

  void group_done(int64_t group);
  /// Reduces the remaining groups and waits for all reductions.
  void finish();

 private:
  void flush();
  Communicator& comm_;
  at::Tensor flat_grad_;
  std::vector<std::pair<int64_t, int64_t>> ranges_;
  int64_t bucket_cap_elements_;
  int64_t begin_ = 0, end_ = 0;  // the bucket being filled; it grows downwards
};

}  // namespace sftrun::parallel
