#pragma once

#include <ATen/Context.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "sftrun/kernels/cuda_registry.h"

/// The CUDA kernels of the build that a program is of (bin/ beside lib/), outside the engine.
namespace sftrun::test {

/// @return what is missing, or nothing
inline std::string load_cuda_kernels() {
  const auto library = std::filesystem::canonical("/proc/self/exe").parent_path().parent_path() /
                       "lib/libsftrun_cuda.so";
  setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", /*overwrite=*/0);  // as the engine
  void* torch = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  void* ours = torch == nullptr ? nullptr : dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (ours == nullptr) return dlerror();
  const auto of_library =
      reinterpret_cast<const kernels::CudaFunction* (*)()>(dlsym(ours, "sftrun_cuda_functions"));
  if (of_library == nullptr || !at::globalContext().hasCUDA())
    return "no GPU that " + library.string() +
           " has code for\n  fix: see what sftrun gpu-info says";
  if (const std::string difference = kernels::cuda_difference(of_library()); !difference.empty())
    return library.string() + " belongs to another build: " + difference;
  kernels::register_cuda_functions(of_library());
  return {};
}

}  // namespace sftrun::test
