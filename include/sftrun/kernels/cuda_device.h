#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "sftrun/kernels/cuda_entry.h"

struct CUstream_st;

/// What the CUDA library says of a GPU (src/cuda/device.cpp).
namespace sftrun::kernels {

/// GPU name as the driver reports it: "NVIDIA H100 80GB HBM3".
extern const CudaEntry<std::string(at::Device device)> card_name;
/// PCI bus ID in NVML's form: "00000000:81:00.0".
extern const CudaEntry<std::string(at::Device device)> card_bus_id;
/// 10 * major + minor: 90 for an H100.
extern const CudaEntry<int(at::Device device)> compute_capability;
extern const CudaEntry<int(at::Device device)> multiprocessors;
/// Zeros in page-locked host memory, for asynchronous copies. Its size is rounded up to whole
/// pages (LibTorch's own allocator rounds up to the next power of two).
/// @param device the GPU that copies
/// @throws c10::Error if the system cannot lock that much memory
extern const CudaEntry<at::Tensor(at::IntArrayRef shape, at::ScalarType dtype, at::Device device)>
    pinned_zeros;
extern const CudaEntry<CUstream_st*(at::Device device)> current_cuda_stream;
/// @throws c10::Error if the last launch of this thread failed
extern const CudaEntry<void()> check_cuda_launch;

}  // namespace sftrun::kernels
