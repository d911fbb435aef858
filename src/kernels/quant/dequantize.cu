#include <cstdlib>
#include <cstring>

#include "cuda/device.cuh"

// Compiled without fused multiply-adds: bit-equal to the references, as on a CPU.
namespace sftrun::kernels::cuda {
namespace {

#include "sftrun/weights/ggml_blocks.inl"

/// A thread writes a group at once where groups are whole.
template <typename Groups, typename T>
__global__ void __launch_bounds__(kThreads)
    dequantize_4bit(Groups matrix, const __grid_constant__ FourBitTables tables, T* y, int64_t n,
                    bool is_whole) {
  constexpr int kGroup = Groups::kGroup;
  matrix.tables = shared_tables(tables, matrix.is_nested());
  const int64_t groups = (n + kGroup - 1) / kGroup,
                stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t group = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; group < groups;
       group += stride) {
    const int64_t first = group * kGroup;
    if (is_whole) {
      float values[kGroup];
      const float factor = matrix.decode(0, group, values);
      for (float& value : values) value *= factor;
      store_eight(y + first, values);
    } else {
      for (int64_t i = first; i < n && i < first + kGroup; ++i) store(y + i, matrix.value(i));
    }
  }
}

constexpr int kGroupsAtOnce = 128;  ///< a thread each

/// Each thread decodes a group; then all write what they have in order.
template <typename Format, typename T, int kWidth>
__global__ void __launch_bounds__(kGroupsAtOnce)
    dequantize_ggml(const uint8_t* blocks, T* y, int64_t groups) {
  constexpr int kGroups = Format::kNumbers / ggml::kGroup, kRow = ggml::kGroup + 1;
  __shared__ float numbers[kGroupsAtOnce * kRow];  // rows in different banks
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kGroupsAtOnce;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kGroupsAtOnce; first < groups;
       first += stride) {
    const int64_t group = first + threadIdx.x;
    if (group < groups) {
      Format::decode(blocks + group / kGroups * Format::kBytes, static_cast<int>(group % kGroups),
                     numbers + threadIdx.x * kRow);
    }
    __syncthreads();
    const int64_t left = (groups - first) * ggml::kGroup,
                  count = left < kGroupsAtOnce * ggml::kGroup ? left : kGroupsAtOnce * ggml::kGroup;
    for (int64_t i = static_cast<int64_t>(threadIdx.x) * kWidth; i < count;
         i += kGroupsAtOnce * kWidth) {
      store_values<kWidth>(y + first * ggml::kGroup + i,
                           numbers + i / ggml::kGroup * kRow + i % ggml::kGroup);
    }
    __syncthreads();
  }
}

}  // namespace

void launch_dequantize_4bit(Type type, const FourBitView& matrix, const FourBitTables& tables,
                            void* y, Stream stream) {
  const int64_t n = matrix.rows * matrix.columns;
  if (n == 0) return;
  const unsigned grid = grid_of((n + FourBitView::kGroup - 1) / FourBitView::kGroup);
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_groups(matrix, [&](const auto& groups) {
      launch(dequantize_4bit<std::decay_t<decltype(groups)>, T>, grid, kThreads, stream, groups,
             tables, static_cast<T*>(y), n, matrix.groups_are_whole() && in_eights(0, {y}));
    });
  });
}

void launch_dequantize_ggml(Type type, weights::GgmlType ggml_type, const uint8_t* blocks, void* y,
                            int64_t n, Stream stream) {
  if (n == 0) return;
  const int64_t groups = n / ggml::kGroup, wanted = (groups + kGroupsAtOnce - 1) / kGroupsAtOnce;
  constexpr int64_t kMostBlocks = 1 << 16;
  const auto grid = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    ggml::with_format(ggml_type, [&](auto format) {
      with_width(in_eights(0, {y}), [&](auto width) {
        launch(dequantize_ggml<decltype(format), T, decltype(width)::value>, grid, kGroupsAtOnce,
               stream, blocks, static_cast<T*>(y), groups);
      });
    });
  });
}

}  // namespace sftrun::kernels::cuda
