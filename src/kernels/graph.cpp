#include "sftrun/kernels/graph.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "sftrun/kernels/cuda_registry.h"

namespace sftrun::kernels {

std::unique_ptr<Graph> capture(at::Device device, const Graph* beside,
                               const std::function<void()>& work) {
  const CudaKernels& kernels = cuda_kernels();
  // What is cached for others would stay unused beside the graph's own memory, and cannot be given
  // back while the capture is under way.
  c10::getDeviceAllocator(device.type())->emptyCache();
  return kernels.capture(device, beside, work);
}

}  // namespace sftrun::kernels
