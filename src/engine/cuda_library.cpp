#include "cuda_library.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
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

/// Names the first card that the kernels are not built for (older than sm_80); empty if there is
/// none. Asks the driver, with CUDA's driver API declared here: the engine is built without CUDA's
/// headers.
std::string too_old_card(void* driver) {
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count_of = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto name_of = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  const auto attribute =
      reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  if (!init || !count_of || !get || !name_of || !attribute) return {};
  constexpr int kComputeMajor = 75,
                kComputeMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
  int count = 0;
  if (init(0) != 0 || count_of(&count) != 0) return {};
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    int device = 0, major = 0, minor = 0;
    if (get(&device, ordinal) != 0 || attribute(&major, kComputeMajor, device) != 0 || major >= 8)
      continue;
    std::array<char, 256> name{};
    if (name_of(name.data(), static_cast<int>(name.size()) - 1, device) != 0) name = {"unnamed"};
    if (attribute(&minor, kComputeMinor, device) != 0) minor = 0;
    return fmt::format(
        "GPU {} ({}) is sm_{}{}; sm_80 or newer is needed (CUDA_VISIBLE_DEVICES can leave it out)",
        ordinal, name.data(), major, minor);
  }
  return {};
}

CudaStatus load() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return {0, "no NVIDIA driver (libcuda.so.1) on this machine"};
  if (std::string refusal = too_old_card(driver); !refusal.empty()) return {0, std::move(refusal)};
  // Before the first CUDA query: LibTorch caches its answer.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return {0, "this LibTorch has no CUDA: " + last_dl_error()};
  }
  const std::filesystem::path path = own_directory() / "libsftrun_cuda.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return {0, "the CUDA kernels were not built or do not load: " + last_dl_error()};
  const auto kernels =
      reinterpret_cast<const kernels::CudaKernels* (*)()>(dlsym(library, "sftrun_cuda_kernels"));
  const auto nccl = reinterpret_cast<parallel::NcclFactory>(dlsym(library, "sftrun_nccl_backend"));
  if (kernels == nullptr || nccl == nullptr)
    return {0, path.string() + " belongs to another build"};
  kernels::register_cuda_kernels(*kernels());
  parallel::register_nccl_factory(nccl);
  const int devices =
      at::globalContext().hasCUDA()
          ? static_cast<int>(
                at::globalContext().getAcceleratorHooksInterface(at::kCUDA).deviceCount())
          : 0;
  return {devices, devices > 0 ? "" : "the driver reports no usable GPU"};
}

}  // namespace

CudaStatus load_cuda_library() {
  static const CudaStatus status = load();
  return status;
}

}  // namespace sftrun::engine
