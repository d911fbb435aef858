#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/provided.h"

/// What a device can do, its stream, and host memory locked for copies to it. Contracts:
/// include/sftrun/kernels/cuda_device.h. This library depends only on LibTorch and on no symbol of
/// the engine, which is loaded with RTLD_LOCAL.
namespace sftrun::kernels {
namespace {

int compute_capability(at::Device device) {
  const auto* card = at::cuda::getDeviceProperties(device.index());
  return card->major * 10 + card->minor;
}

int multiprocessors(at::Device device) {
  return at::cuda::getDeviceProperties(device.index())->multiProcessorCount;
}

CUstream_st* current_stream(at::Device device) {
  TORCH_CHECK(device.is_cuda(), "an operand on ", device, " of an operation that only CUDA has");
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

void check_launch() {
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

at::Tensor pinned_zeros(at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  const auto options = at::TensorOptions().dtype(dtype);
  const auto bytes = static_cast<size_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype);
  if (bytes == 0) return at::zeros(shape, options);
  constexpr size_t kPage = 4096;  // whole pages: a shared page could not be locked twice
  const size_t whole_pages = (bytes + kPage - 1) / kPage * kPage;
  void* memory = std::aligned_alloc(kPage, whole_pages);
  TORCH_CHECK(memory != nullptr, "no ", whole_pages, " bytes of host memory are left");
  std::memset(memory, 0, whole_pages);
  const c10::cuda::CUDAGuard guard(device);  // the context that registers the memory
  const cudaError_t error = cudaHostRegister(memory, whole_pages, cudaHostRegisterDefault);
  if (error != cudaSuccess) {
    std::free(memory);  // NOLINT(cppcoreguidelines-no-malloc): from aligned_alloc
    TORCH_CHECK(false, "locking ", whole_pages,
                " bytes of host memory for copies to the GPU: ", cudaGetErrorString(error));
  }
  const auto release = [](void* locked) {
    C10_CUDA_CHECK_WARN(cudaHostUnregister(locked));
    std::free(locked);  // NOLINT(cppcoreguidelines-no-malloc)
  };
  return at::from_blob(memory, shape, release, options);
}

std::string card_name(at::Device device) {
  return at::cuda::getDeviceProperties(device.index())->name;
}

std::string card_bus_id(at::Device device) {
  const cudaDeviceProp& card = *at::cuda::getDeviceProperties(device.index());
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%08x:%02x:%02x.0", card.pciDomainID, card.pciBusID,
                card.pciDeviceID);
  return text.data();
}

const cuda::Provided kOfDevice[] = {{"card_name", card_name},
                                    {"card_bus_id", card_bus_id},
                                    {"compute_capability", compute_capability},
                                    {"multiprocessors", multiprocessors},
                                    {"pinned_zeros", pinned_zeros},
                                    {"current_cuda_stream", current_stream},
                                    {"check_cuda_launch", check_launch}};

}  // namespace
}  // namespace sftrun::kernels
