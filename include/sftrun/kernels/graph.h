#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace sftrun::kernels {

/// What was queued on a GPU, kept as a CUDA graph: one launch does all of it again, with the memory
/// that it had.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  virtual ~Graph() = default;
  /// On the current stream of its device.
  virtual void launch() = 0;
};

/// Runs `work`, whose kernels and copies are noted, not done. Memory that it takes is the graph's;
/// what it leaves there for others is gone with the next launch.
/// @param beside shares its memory: launched one after the other, and nothing of one's is read
/// after the other's launch; null: memory of its own
/// @param work may not wait for the device, nor copy from pageable memory
/// @throws c10::Error where the work cannot be captured; whatever `work` throws. The device is then
/// as it was before.
std::unique_ptr<Graph> capture(at::Device device, const Graph* beside,
                               const std::function<void()>& work);

}  // namespace sftrun::kernels
