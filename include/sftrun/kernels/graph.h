#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace sftrun::kernels {

/// A captured CUDA graph: one launch repeats all captured work on the same memory addresses.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  virtual ~Graph() = default;
  /// Launches on the current stream of its device.
  virtual void launch() = 0;
};

/// Captures `work`: its kernels and copies are recorded, not executed. Memory allocated during
/// capture belongs to the graph; the next launch overwrites what `work` left there.
/// @param pool_owner graph whose memory pool is shared; the two must not run at the same time, and
/// nothing of one may be read after the other was launched; null: an own pool
/// @param work must not synchronise with the device, nor copy from pageable memory
/// @throws c10::Error if the work cannot be captured; rethrows whatever `work` throws. The device
/// state is then the same as before.
std::unique_ptr<Graph> capture(at::Device device, const Graph* pool_owner,
                               const std::function<void()>& work);

}  // namespace sftrun::kernels
