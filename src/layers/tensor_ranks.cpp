#include "sftrun/layers/tensor_ranks.h"

#include <ATen/ATen.h>

namespace sftrun::layers {

at::Tensor part_of(const at::Tensor& whole, const TensorSlice& slice) {
  std::vector<at::Tensor> parts;
  for (const IndexRange& range : slice.ranges)
    parts.push_back(whole.narrow(slice.dim, range.begin, range.count));
  return parts.size() == 1 ? parts[0] : at::cat(parts, slice.dim);
}

void put_part(const at::Tensor& whole, const TensorSlice& slice, const at::Tensor& part) {
  int64_t first = 0;
  for (const IndexRange& range : slice.ranges) {
    whole.narrow(slice.dim, range.begin, range.count)
        .copy_(part.narrow(slice.dim, first, range.count));
    first += range.count;
  }
}

}  // namespace sftrun::layers
