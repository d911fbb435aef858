#pragma once

#include <cublas_v2.h>

namespace stand_in {

/// What a cublasHandle_t points to.
struct BlasHandle {
  int device = 0;
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
};

/// Of a live handle, which is the current device's.
BlasHandle& blas(void* handle);

}  // namespace stand_in
