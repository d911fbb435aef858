#pragma once

#include <cstdint>
#include <vector>

namespace sftrun {

/// How files order the values of a tensor that memory holds otherwise: the tensor seen as `view`,
/// its dimensions in `order`, and that seen as `shape`. All empty: as memory has it.
struct FileLayout {
  std::vector<int64_t> view, order, shape;
  bool reorders() const { return !order.empty(); }
};

}  // namespace sftrun
