#include "cuda_library.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <filesystem>

#include "sftrun/kernels/cuda_registry.h"
#include "sftrun/parallel/nccl_factory.h"

namespace sftrun::engine {
namespace {

/// The folder this library lies in.
std::filesystem::path own_directory() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_cuda_library), &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

std::string last_dl_error() {
  const char* error = dlerror();
  return error ? error : "unknown error";
}

CudaStatus load() {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) return {0, "no NVIDIA driver (libcuda.so.1) on this machine"};
  // Before the first CUDA query: LibTorch caches its answer.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return {0, "this LibTorch has no CUDA: " + last_dl_error()};
  }
  const std::filesystem::path path = own_directory() / "libsftrun_cuda.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {0, "the CUDA kernels were not built or do not load: " + last_dl_error()};
  const auto kernels = reinterpret_cast<const kernels::CudaKernels* (*)()>(dlsym(library, "sftrun_cuda_kernels"));
  const auto nccl = reinterpret_cast<parallel::NcclFactory>(dlsym(library, "sftrun_nccl_backend"));
  if (kernels == nullptr || nccl == nullptr) return {0, path.string() + " belongs to another build"};
  kernels::register_cuda_kernels(*kernels());
  parallel::register_nccl_factory(nccl);
  const int devices = at::globalContext().hasCUDA() ? static_cast<int>(at::globalContext().getAcceleratorHooksInterface(at::kCUDA).deviceCount()) : 0;
  return {devices, devices > 0 ? "" : "the driver reports no usable GPU"};
}

}  // namespace

CudaStatus load_cuda_library() {
  static const CudaStatus status = load();
  return status;
}

}  // namespace sftrun::engine
