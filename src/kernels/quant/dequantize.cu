#include <cstdlib>
#include <cstring>

#include "cuda/device.cuh"

// Compiled without fused multiply-adds: bit-equal to the references, as on a CPU.
namespace sftrun::kernels::cuda {
namespace {

#include "sftrun/weights/ggml_blocks.inl"

/// Both values of a byte.
template <typename T>
__global__ void __launch_bounds__(kThreads) dequantize_4bit(FourBitView matrix, T* y, int64_t n) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = 2 * (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x); i < n;
       i += 2 * stride) {
    store(y + i, four_bit_value(matrix, i));
    if (i + 1 < n) store(y + i + 1, four_bit_value(matrix, i + 1));
  }
}

constexpr int kGroupsAtOnce = 128;  ///< a thread each

/// Each thread decodes a group; then all write what they have in order.
template <typename Format, typename T>
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
    for (int64_t i = threadIdx.x; i < count; i += kGroupsAtOnce) {
      store(y + first * ggml::kGroup + i, numbers[i / ggml::kGroup * kRow + i % ggml::kGroup]);
    }
    __syncthreads();
  }
}

}  // namespace

void launch_dequantize_4bit(Type type, const FourBitView& matrix, void* y, int64_t n,
                            Stream stream) {
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    dequantize_4bit<T>
        <<<grid_of((n + 1) / 2), kThreads, 0, stream>>>(matrix, static_cast<T*>(y), n);
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
      dequantize_ggml<decltype(format), T>
          <<<grid, kGroupsAtOnce, 0, stream>>>(blocks, static_cast<T*>(y), groups);
    });
  });
}

}  // namespace sftrun::kernels::cuda
