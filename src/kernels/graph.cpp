#include "sftrun/kernels/graph.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "sftrun/kernels/cuda_entry.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(capture)> capture_graph("capture_graph");

}  // namespace

std::unique_ptr<Graph> capture(at::Device device, const Graph* pool_owner,
                               const std::function<void()>& work) {
  // Cached blocks of other streams would stay unused beside the graph's memory pool, and cannot be
  // freed during the capture.
  c10::getDeviceAllocator(device.type())->emptyCache();
  return capture_graph(device, pool_owner, work);
}

}  // namespace sftrun::kernels
