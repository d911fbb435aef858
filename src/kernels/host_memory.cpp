#include "sftrun/kernels/host_memory.h"

#include <ATen/ATen.h>

#include "sftrun/kernels/cuda_device.h"

namespace sftrun::kernels {

at::Tensor host_zeros(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  if (device.is_cuda()) return pinned_zeros(shape, dtype, device);
  return at::zeros(shape, dtype);
}

}  // namespace sftrun::kernels
