#include <ATen/Context.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "sftrun/kernels/cuda_registry.h"

/// Everything that runs on a GPU beside the same on a CPU. By hand, or by `make gpu-check`: without
/// a GPU it ends with 2.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto library = std::filesystem::canonical("/proc/self/exe").parent_path().parent_path() /
                       "lib/libsftrun_cuda.so";
  void* torch = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  void* ours = torch == nullptr ? nullptr : dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (ours == nullptr) {
    std::fprintf(stderr, "error: %s\n", dlerror());
    return 2;
  }
  const auto kernels = reinterpret_cast<const sftrun::kernels::CudaKernels* (*)()>(
      dlsym(ours, "sftrun_cuda_kernels"));
  if (kernels == nullptr || !at::globalContext().hasCUDA()) {
    std::fprintf(stderr, "error: there is no GPU that %s serves\n", library.c_str());
    return 2;
  }
  sftrun::kernels::register_cuda_kernels(*kernels());
  return RUN_ALL_TESTS();
}
