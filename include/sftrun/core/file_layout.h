#pragma once

#include <cstdint>
#include <vector>

namespace sftrun {

/// The order of a tensor's values in a file, if it differs from memory: reshape the tensor to
/// `view`, permute its dimensions by `order`, reshape to `shape`. All empty: the order of memory.
struct FileLayout {
  std::vector<int64_t> view, order, shape;
  bool reorders() const { return !order.empty(); }
};

}  // namespace sftrun
