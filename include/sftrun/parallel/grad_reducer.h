#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "sftrun/parallel/communicator.h"

/// Sums one flat gradient buffer over all ranks while the backward pass goes on. Two verbs:
/// `group_done` as groups complete, from the last to the first, and `finish`.
namespace sftrun::parallel {

class GradReducer {
 public:
  /// @param ranges element range [begin, end) of each group in the buffer, ascending; empty ranges
  /// allowed
  /// @param bucket_cap_bytes neighbouring groups are reduced together until they are this large
  GradReducer(Communicator& comm, at::Tensor flat_grad,
              std::vector<std::pair<int64_t, int64_t>> ranges, int64_t bucket_cap_bytes);

  void group_done(int64_t group);
  /// Reduces what is left and waits for all of it.
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
