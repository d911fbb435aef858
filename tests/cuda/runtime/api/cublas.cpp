// libcublas: handles and the products that LibTorch makes most of.
#include "../device/products.h"
#include "cublas_handle.h"
#include "entry.h"

namespace stand_in {

BlasHandle& blas(void* handle) {
  auto& known = *static_cast<BlasHandle*>(handle);
  require(known.device == current_device(), "a cuBLAS handle of device ", known.device,
          " while device ", current_device(), " is current");
  return known;
}

namespace {

/// Of A and B: which, how they are turned and how far their columns and batches are apart.
struct Operand {
  const void* data;
  cudaDataType_t type;
  int leading;
  long long stride = 0;
};

struct Gemm {
  const char* name;
  cublasOperation_t transpose_a, transpose_b;
  int m, n, k;
  Operand a, b, c;
  const void* beta;
  bool is_double = false;
  int count = 1;
};

Matrix matrix(const Operand& operand, bool transposed, int64_t rows, int64_t columns, int count) {
  Matrix result{.data = operand.data, .rows = rows, .columns = columns};
  if (transposed) std::swap(result.rows, result.columns);
  result.leading = operand.leading;
  result.type = operand.type;
  result.count = count;
  result.stride = operand.stride;
  return result;
}

cublasStatus_t multiply(cublasHandle_t handle, const Gemm& gemm) {
  const BlasHandle& state = blas(handle);
  const bool turn_a = gemm.transpose_a != CUBLAS_OP_N, turn_b = gemm.transpose_b != CUBLAS_OP_N;
  Product product{.op = gemm.name,
                  .transposed = {turn_a ? 'T' : 'N', turn_b ? 'T' : 'N'},
                  .m = gemm.m,
                  .n = gemm.n,
                  .k = gemm.k};
  product.a = matrix(gemm.a, turn_a, gemm.m, gemm.k, gemm.count);
  product.b = matrix(gemm.b, turn_b, gemm.k, gemm.n, gemm.count);
  product.c = matrix(gemm.c, false, gemm.m, gemm.n, gemm.count);
  const bool on_device = state.pointers == CUBLAS_POINTER_MODE_DEVICE;
  product.beta = scalar(gemm.beta, gemm.is_double, on_device);
  product.stream = state.stream;
  stand_in::multiply(product);
  return CUBLAS_STATUS_SUCCESS;
}

/// A matrix by a vector: the vector is a matrix of one column, whatever its increment.
template <typename Scalar>
cublasStatus_t multiply_vector(const char* name, cudaDataType_t type, cublasHandle_t handle,
                               cublasOperation_t transpose, int m, int n, const Scalar* a, int lda,
                               const Scalar* beta) {
  const BlasHandle& state = blas(handle);
  Product product{.op = name, .transposed = transpose == CUBLAS_OP_N ? "N" : "T", .m = m, .n = 1};
  product.k = n;
  product.a = {.data = a, .rows = m, .columns = n, .leading = lda, .type = type};
  product.b.type = product.c.type = type;
  product.beta = scalar(beta, type == CUDA_R_64F, state.pointers == CUBLAS_POINTER_MODE_DEVICE);
  product.stream = state.stream;
  stand_in::multiply(product);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

// ---- Handles.
STAND_IN_API cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(new BlasHandle{.device = current_device()});
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete reinterpret_cast<BlasHandle*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  blas(handle).stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace,
                                                  size_t size) {
  blas(handle);
  const auto lock = lock_tables();
  if (size != 0) require_live(workspace, size, "cublasSetWorkspace");
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  blas(handle).math = mode;
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = blas(handle).math;
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle,
                                                    cublasPointerMode_t mode) {
  blas(handle).pointers = mode;
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle,
                                                    cublasPointerMode_t* mode) {
  *mode = blas(handle).pointers;
  return CUBLAS_STATUS_SUCCESS;
}

// ---- Products.
STAND_IN_API cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta,
                                         cublasOperation_t tb, int m, int n, int k, const void*,
                                         const void* a, cudaDataType a_type, int lda, const void* b,
                                         cudaDataType b_type, int ldb, const void* beta, void* c,
                                         cudaDataType c_type, int ldc, cublasComputeType_t compute,
                                         cublasGemmAlgo_t) {
  const bool is_double = compute == CUBLAS_COMPUTE_64F;
  return multiply(handle, {"cublasGemmEx",
                           ta,
                           tb,
                           m,
                           n,
                           k,
                           {a, a_type, lda},
                           {b, b_type, ldb},
                           {c, c_type, ldc},
                           beta,
                           is_double});
}
STAND_IN_API cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
    const void*, const void* a, cudaDataType a_type, int lda, long long a_stride, const void* b,
    cudaDataType b_type, int ldb, long long b_stride, const void* beta, void* c,
    cudaDataType c_type, int ldc, long long c_stride, int count, cublasComputeType_t compute,
    cublasGemmAlgo_t) {
  const bool is_double = compute == CUBLAS_COMPUTE_64F;
  return multiply(handle, {"cublasGemmStridedBatchedEx",
                           ta,
                           tb,
                           m,
                           n,
                           k,
                           {a, a_type, lda, a_stride},
                           {b, b_type, ldb, b_stride},
                           {c, c_type, ldc, c_stride},
                           beta,
                           is_double,
                           count});
}
STAND_IN_API cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t ta,
                                           cublasOperation_t tb, int m, int n, int k, const float*,
                                           const float* a, int lda, const float* b, int ldb,
                                           const float* beta, float* c, int ldc) {
  return multiply(handle, {"cublasSgemm",
                           ta,
                           tb,
                           m,
                           n,
                           k,
                           {a, CUDA_R_32F, lda},
                           {b, CUDA_R_32F, ldb},
                           {c, CUDA_R_32F, ldc},
                           beta});
}
STAND_IN_API cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t ta,
                                           cublasOperation_t tb, int m, int n, int k, const double*,
                                           const double* a, int lda, const double* b, int ldb,
                                           const double* beta, double* c, int ldc) {
  return multiply(handle, {"cublasDgemm",
                           ta,
                           tb,
                           m,
                           n,
                           k,
                           {a, CUDA_R_64F, lda},
                           {b, CUDA_R_64F, ldb},
                           {c, CUDA_R_64F, ldc},
                           beta,
                           true});
}
STAND_IN_API cublasStatus_t cublasSgemmStridedBatched(
    cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
    const float*, const float* a, int lda, long long a_stride, const float* b, int ldb,
    long long b_stride, const float* beta, float* c, int ldc, long long c_stride, int count) {
  return multiply(handle, {"cublasSgemmStridedBatched",
                           ta,
                           tb,
                           m,
                           n,
                           k,
                           {a, CUDA_R_32F, lda, a_stride},
                           {b, CUDA_R_32F, ldb, b_stride},
                           {c, CUDA_R_32F, ldc, c_stride},
                           beta,
                           false,
                           count});
}
STAND_IN_API cublasStatus_t cublasDgemmStridedBatched(
    cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
    const double*, const double* a, int lda, long long a_stride, const double* b, int ldb,
    long long b_stride, const double* beta, double* c, int ldc, long long c_stride, int count) {
  return multiply(handle, {"cublasDgemmStridedBatched",
                           ta,
                           tb,
                           m,
                           n,
                           k,
                           {a, CUDA_R_64F, lda, a_stride},
                           {b, CUDA_R_64F, ldb, b_stride},
                           {c, CUDA_R_64F, ldc, c_stride},
                           beta,
                           true,
                           count});
}
STAND_IN_API cublasStatus_t cublasSgemv_v2(cublasHandle_t handle, cublasOperation_t transpose,
                                           int m, int n, const float*, const float* a, int lda,
                                           const float*, int, const float* beta, float*, int) {
  return multiply_vector("cublasSgemv", CUDA_R_32F, handle, transpose, m, n, a, lda, beta);
}
STAND_IN_API cublasStatus_t cublasDgemv_v2(cublasHandle_t handle, cublasOperation_t transpose,
                                           int m, int n, const double*, const double* a, int lda,
                                           const double*, int, const double* beta, double*, int) {
  return multiply_vector("cublasDgemv", CUDA_R_64F, handle, transpose, m, n, a, lda, beta);
}
