#include <cstdlib>
#include <cstring>

#include "cuda/device.cuh"
#include "dequantize_groups.cuh"
#include "quant/dequantize_launch.h"

// Compiled with -fmad=false: bit-equal to the references, as on CPU.
namespace sftrun::kernels::cuda {
namespace {

#include "sftrun/weights/ggml_blocks.inl"

template <typename Groups, typename T, int kWidth>
__global__ void __launch_bounds__(kUnpackThreads)
    dequantize_4bit(Groups matrix, const __grid_constant__ FourBitTables tables,
                    const UnpackedRows<T> to, int64_t groups) {
  matrix.tables = shared_tables(tables, matrix.is_nested());
  dequantize_groups<kWidth>(matrix, to, groups);
}

/// For matrices that do not consist of whole groups.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    dequantize_4bit_singly(FourBitView matrix, const __grid_constant__ FourBitTables tables,
                           const UnpackedRows<T> to, int64_t n) {
  matrix.tables = shared_tables(tables, matrix.is_nested());
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride)
    store(to.value(i), matrix.value(i));
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kUnpackThreads)
    dequantize_int4_groups(Int4GroupView matrix, const UnpackedRows<T> to, int64_t groups) {
  dequantize_groups<kWidth>(matrix, to, groups);
}

/// For matrices whose words do not have one scale each.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    dequantize_int4_singly(Int4GroupView matrix, const UnpackedRows<T> to, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride)
    store(to.value(i), matrix.value(i));
}

template <typename Format, typename T, int kWidth>
__global__ void __launch_bounds__(kUnpackThreads)
    dequantize_ggml(GgmlView<Format> matrix, const UnpackedRows<T> to, int64_t groups) {
  dequantize_groups<kWidth>(matrix, to, groups);
}

}  // namespace

void launch_dequantize_4bit(Type type, const FourBitView& matrix, const FourBitTables& tables,
                            const ValueRows& to, Stream stream) {
  const int64_t n = matrix.rows * matrix.columns, groups = n / kGroup;
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    if (!matrix.groups_are_whole()) {
      launch(dequantize_4bit_singly<T>, grid_of(n), kThreads, stream, matrix, tables,
             UnpackedRows<T>(to, matrix.columns), n);
      return;
    }
    with_groups(matrix, [&](const auto& view) {
      with_width(rows_in_eights(type, to), [&](auto width) {
        launch(dequantize_4bit<std::decay_t<decltype(view)>, T, decltype(width)::value>,
               unpack_grid(groups), kUnpackThreads, stream, view, tables,
               UnpackedRows<T>(to, matrix.columns), groups);
      });
    });
  });
}

void launch_dequantize_int4_groups(Type type, const Int4GroupView& matrix, const ValueRows& to,
                                   Stream stream) {
  const int64_t n = matrix.rows * matrix.columns, groups = n / kGroup;
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    const UnpackedRows<T> rows(to, matrix.columns);
    if (!matrix.groups_are_whole()) {
      launch(dequantize_int4_singly<T>, grid_of(n), kThreads, stream, matrix, rows, n);
      return;
    }
    with_width(rows_in_eights(type, to), [&](auto width) {
      launch(dequantize_int4_groups<T, decltype(width)::value>, unpack_grid(groups), kUnpackThreads,
             stream, matrix, rows, groups);
    });
  });
}

void launch_dequantize_ggml(Type type, weights::GgmlType ggml_type, const uint8_t* blocks,
                            int64_t rows, int64_t columns, const ValueRows& to, Stream stream) {
  const int64_t groups = rows * columns / kGroup;
  if (groups == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    ggml::with_format(ggml_type, [&](auto format) {
      using Format = decltype(format);
      with_width(rows_in_eights(type, to), [&](auto width) {
        launch(dequantize_ggml<Format, T, decltype(width)::value>, unpack_grid(groups),
               kUnpackThreads, stream, GgmlView<Format>{blocks, rows, columns},
               UnpackedRows<T>(to, columns), groups);
      });
    });
  });
}

const Provided kLaunchers[] = {{"launch_dequantize_4bit", launch_dequantize_4bit},
                               {"launch_dequantize_int4_groups", launch_dequantize_int4_groups},
                               {"launch_dequantize_ggml", launch_dequantize_ggml}};

}  // namespace sftrun::kernels::cuda
