#pragma once

struct CUstream_st;

/// What the launchers of all operations use. A launcher (src/kernels/<operation>/*_launch.h) works on
/// raw device pointers and without LibTorch, because nvcc needs half a minute to parse ATen's
/// headers. Contracts are those of `RowKernels`; empty input launches nothing. Errors are left for
/// cudaGetLastError().
namespace sftrun::kernels::cuda {

enum class Type { kFloat32, kBFloat16, kFloat16 };
using Stream = CUstream_st*;

}  // namespace sftrun::kernels::cuda
