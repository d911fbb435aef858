#include "sftrun/kernels/graph.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "sftrun/kernels/cuda_registry.h"

namespace sftrun::kernels {

std::unique_ptr<Graph> capture(at::Device device, const Graph* beside,
                               const std::function<void()>& work) {
  const CudaKernels& kernels = cuda_kernels();
  // Cached blocks of other streams would stay unused beside the graph's memory pool, and cannot be
  // freed during the capture.
  c10::getDeviceAllocator(device.type())->emptyCache();
  return kernels.capture(device, beside, work);
}

}  // namespace sftrun::kernels
