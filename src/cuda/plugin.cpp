#include "cuda/provided.h"

extern "C" const sftrun::kernels::CudaFunction* sftrun_cuda_functions() {
  return sftrun::kernels::cuda::Provided::first();
}

/// CMake's CUDA_ARCHITECTURES of this build.
extern "C" const char* sftrun_cuda_architectures() {
  return SFTRUN_CUDA_ARCHITECTURES;
}
