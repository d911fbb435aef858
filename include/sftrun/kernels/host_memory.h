#pragma once

#include <ATen/core/Tensor.h>

namespace sftrun::kernels {

/// Zeros in host memory, for values that wait there until a device uses them. Pinned if the device is
/// CUDA, so that copies run beside the computation.
at::Tensor host_zeros(at::IntArrayRef shape, at::ScalarType dtype, at::Device device);

}  // namespace sftrun::kernels
