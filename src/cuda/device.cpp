#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "entries.h"

/// What a device can do, and host memory locked for copies to it.
namespace sftrun::kernels::plugin {

int compute_capability(at::Device device) {
  const auto* card = at::cuda::getDeviceProperties(device.index());
  return card->major * 10 + card->minor;
}

bool multiplies_fp8(const at::Tensor& x) {
  constexpr int kAda = 89;
  return compute_capability(x.device()) >= kAda;
}

/// The condition of at::_grouped_mm (aten/src/ATen/native/cuda/GroupedBlas.cpp); elsewhere it
/// copies `ends` to the host and multiplies one matrix after the other.
bool libtorch_groups(const at::Tensor& x) {
  if (x.scalar_type() != at::kBFloat16) return false;
  const int major = at::cuda::getDeviceProperties(x.device().index())->major;
  return major == 9 || major == 10;
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

}  // namespace sftrun::kernels::plugin
