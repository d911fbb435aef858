#pragma once

#include "cuda/staging.cuh"
#include "quant/dequantize_launch.h"

// Shared code of the dequantisation kernels. Must be compiled without fused multiply-adds.
namespace sftrun::kernels::cuda {

constexpr int kUnpackThreads = 128;
/// Groups that a block decodes per iteration: with 4 bits each thread reads 16 bytes.
constexpr int kUnpackGroups = 4 * kUnpackThreads;

/// Destination: rows of `columns` values, row stride `stride`.
template <typename T>
struct UnpackedRows {
  T* y;
  int64_t columns, stride;

  UnpackedRows(const ValueRows& to, int64_t num_columns)
      : y(static_cast<T*>(to.y)), columns(num_columns), stride(to.stride) {}

  /// Address of value i of the whole matrix.
  __device__ T* value(int64_t i) const {
    return stride == columns ? y + i : y + i / columns * stride + i % columns;
  }
  /// Address of group i of the whole matrix.   @pre rows are whole groups
  __device__ T* group(int64_t i) const {
    if (stride == columns) return y + i * kGroup;
    const int64_t of_row = columns / kGroup, row = row_of_group(i, of_row);
    return y + row * stride + (i - row * of_row) * kGroup;
  }
};

/// Whether whole groups can be written as 16-byte words.
inline bool rows_in_eights(Type type, const ValueRows& to) {
  return in_eights(0, {to.y}) && strides_in_eights(type, {to.stride});
}

/// Dequantises a matrix of whole groups. The codes are copied to shared memory first, so that reads
/// and writes are coalesced 16-byte accesses.
/// @tparam kWidth 8 if `rows_in_eights`, else 1
/// @param matrix a view of packed.h
template <int kWidth, typename View, typename T>
__device__ __forceinline__ void dequantize_groups(const View& matrix, const UnpackedRows<T>& to,
                                                  int64_t groups) {
  using Bytes = Staging<static_cast<int>(View::bytes_before(kUnpackGroups)), kUnpackThreads>;
  __shared__ __align__(16) uint8_t memory[Bytes::kBytes];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kUnpackGroups;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kUnpackGroups; first < groups;
       first += stride) {
    const int64_t end = first + kUnpackGroups < groups ? first + kUnpackGroups : groups;
    const uint8_t* from = matrix.bytes() + View::bytes_before(first);
    Bytes bytes;
    bytes.load(from, View::bytes_before(end) - View::bytes_before(first), thread);
    __syncthreads();  // the previous content has been read
    bytes.store(memory, thread);
    __syncthreads();
    const uint8_t* here = memory + Bytes::shift_of(from);
    for (int64_t group = first + thread; group < end; group += kUnpackThreads) {
      float values[kGroup];
      matrix.final_values(here + View::bytes_before(group - first), group, values);
      T* y = to.group(group);
      for (int i = 0; i < kGroup; i += kWidth) store_values<kWidth>(y + i, values + i);
    }
  }
}

/// Number of blocks for this many groups; limited, because each block loads the tables once.
inline unsigned unpack_grid(int64_t groups) {
  constexpr int64_t kLimit = 1 << 13;
  const int64_t blocks = (groups + kUnpackGroups - 1) / kUnpackGroups;
  return static_cast<unsigned>(blocks < kLimit ? blocks : kLimit);
}

}  // namespace sftrun::kernels::cuda
