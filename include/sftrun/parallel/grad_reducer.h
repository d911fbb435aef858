#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "sftrun/parallel/group.h"

/// Sums one flat gradient buffer over all ranks while the backward pass is running. Call
/// `unit_ready` when the gradients of a unit are complete, from the last unit to the first, then
/// `finish`.
namespace sftrun::parallel {

class GradReducer {
 public:
  /// @param ranges element range [begin, end) of each unit in the buffer, ascending; ranges may be
  /// empty
  /// @param bucket_cap_bytes adjacent units are reduced in one call until they reach this size
  /// @param sent_as fp32, or bf16: gradients and their sums are rounded to it
  GradReducer(Group ranks, at::Tensor flat_grad, std::vector<std::pair<int64_t, int64_t>> ranges,
              int64_t bucket_cap_bytes, at::ScalarType sent_as = at::kFloat);

  void unit_ready(int64_t unit);
  /// Reduces the remaining units and waits for all reductions.
  void finish();

 private:
  void flush();
  Group ranks_;
  at::Tensor flat_grad_;
  std::vector<std::pair<int64_t, int64_t>> ranges_;
  int64_t bucket_cap_elements_;
  at::ScalarType sent_as_;
  int64_t begin_ = 0, end_ = 0;  // the bucket being filled; it grows downwards
  struct Rounded {
    at::Tensor sent, bucket;
  };
  std::vector<Rounded> rounded_;  // buckets that are being reduced, if they are rounded
};

}  // namespace sftrun::parallel
