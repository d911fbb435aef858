#include "sftrun/kernels/cuda_registry.h"

#include <ATen/Context.h>

#include <optional>

#include "sftrun/core/error.h"

namespace sftrun::kernels {
namespace {

// Written once, when the CUDA library is loaded and before worker threads exist.
std::optional<CudaKernels>& registered() {
  static std::optional<CudaKernels> kernels;
  return kernels;
}

}  // namespace

void register_cuda_kernels(const CudaKernels& kernels) {
  // By default cuBLAS may reduce partial sums of a product in 16 bits.
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
