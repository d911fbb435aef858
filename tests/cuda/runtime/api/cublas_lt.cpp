// libcublasLt: descriptors and their products.
#include <cublasLt.h>

#include <cstring>

#include "../device/products.h"
#include "entry.h"

namespace stand_in {
namespace {

/// What the opaque handles point to.
struct Description {
  cudaDataType_t scale = CUDA_R_32F;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  int32_t pointers = CUBLASLT_POINTER_MODE_HOST;
};
struct Layout {
  Matrix matrix;
  int32_t count = 1;
  int64_t stride = 0;
};

template <typename State, typename Handle>
State& state(Handle handle) {
  return *reinterpret_cast<State*>(handle);
}

Matrix placed(cublasLtMatrixLayout_t handle, const void* data) {
  const Layout& layout = state<Layout>(handle);
  Matrix result = layout.matrix;
  result.data = data;
  result.count = layout.count;
  result.stride = layout.stride;
  return result;
}

template <typename Value>
void assign(Value& to, const void* from, size_t size) {
  std::memcpy(&to, from, std::min(size, sizeof to));
}

char letter(int32_t transpose) {
  return transpose == CUBLAS_OP_N ? 'N' : 'T';
}

}  // namespace
}  // namespace stand_in

using namespace stand_in;

STAND_IN_API size_t cublasLtGetVersion() {
  return 130000;
}
STAND_IN_API cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int(current_device()));
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

// ---- Descriptions.
STAND_IN_API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle,
                                                     cublasComputeType_t, cudaDataType_t scale) {
  *handle = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{.scale = scale});
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  delete reinterpret_cast<Description*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                                           cublasLtMatmulDescAttributes_t which,
                                                           const void* value, size_t size) {
  auto& description = state<Description>(handle);
  if (which == CUBLASLT_MATMUL_DESC_TRANSA) assign(description.transpose_a, value, size);
  if (which == CUBLASLT_MATMUL_DESC_TRANSB) assign(description.transpose_b, value, size);
  if (which == CUBLASLT_MATMUL_DESC_POINTER_MODE) assign(description.pointers, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

// ---- Layouts.
STAND_IN_API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle,
                                                       cudaDataType type, uint64_t rows,
                                                       uint64_t columns, int64_t leading) {
  auto* layout = new Layout;
  layout->matrix = {.rows = static_cast<int64_t>(rows),
                    .columns = static_cast<int64_t>(columns),
                    .leading = leading,
                    .type = type};
  *handle = reinterpret_cast<cublasLtMatrixLayout_t>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  delete reinterpret_cast<Layout*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                             cublasLtMatrixLayoutAttribute_t which,
                                                             const void* value, size_t size) {
  auto& layout = state<Layout>(handle);
  if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) assign(layout.count, value, size);
  if (which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) assign(layout.stride, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

// ---- Preferences, of which nothing is kept.
STAND_IN_API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
  *handle = reinterpret_cast<cublasLtMatmulPreference_t>(new int(0));
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
STAND_IN_API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
    cublasLtMatmulHeuristicResult_t* results, int* count) {
  *results = {};
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

// ---- Products.
STAND_IN_API cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t, cublasLtMatmulDesc_t description, const void*, const void* a,
    cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
    const void* beta, const void*, cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
    const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  const auto& how = state<Description>(description);
  Product product{.op = "cublasLtMatmul",
                  .transposed = {letter(how.transpose_a), letter(how.transpose_b)}};
  product.a = placed(a_layout, a);
  product.b = placed(b_layout, b);
  product.c = placed(d_layout, d);
  product.m = product.c.rows;
  product.n = product.c.columns;
  product.k = how.transpose_a == CUBLAS_OP_N ? product.a.columns : product.a.rows;
  product.beta = scalar(beta, how.scale == CUDA_R_64F, how.pointers != CUBLASLT_POINTER_MODE_HOST);
  product.stream = stream;
  multiply(product);
  return CUBLAS_STATUS_SUCCESS;
}
