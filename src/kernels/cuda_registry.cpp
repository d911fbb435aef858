#include "sftrun/kernels/cuda_registry.h"

#include <ATen/Context.h>

#include <optional>

#include "sftrun/core/error.h"

namespace sftrun::kernels {
namespace {

// Written once while the CUDA library is being loaded, before any worker thread exists.
std::optional<CudaKernels>& registered() {
  static std::optional<CudaKernels> kernels;
  return kernels;
}

}  // namespace

void register_cuda_kernels(const CudaKernels& kernels) {
  // cuBLAS may add partial sums of a product in 16 bits unless it is told not to.
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
  registered() = kernels;
}
bool has_cuda_kernels() {
  return registered().has_value();
}

const CudaKernels& cuda_kernels() {
  if (!registered()) {
    throw DeviceError("the CUDA kernels are not loaded", "libsftrun_cuda.so",
                      "build where a CUDA compiler is installed, or run with --device cpu");
  }
  return *registered();
}

}  // namespace sftrun::kernels
