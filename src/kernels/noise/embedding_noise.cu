#include "cuda/device.cuh"
#include "noise/embedding_noise_launch.h"

// One Philox call yields the noise of four consecutive channels. One block per token; a thread
// processes eight channels at a time, or four if rows are not accessed in vectors of eight.
namespace sftrun::kernels::cuda {
namespace {

/// Document of a row: the last one that begins at or before it and is not empty.
__device__ __forceinline__ int64_t document_of(const int32_t* cu_seqlens, int64_t documents,
                                               int64_t row) {
  int64_t first = 0, end = documents;
  while (end - first > 1) {
    const int64_t middle = (first + end) / 2;
    if (cu_seqlens[middle] <= row)
      first = middle;
    else
      end = middle;
  }
  return first;
}

/// Noise magnitude of a row's document, in every thread.
__device__ __forceinline__ float row_magnitude(const int32_t* cu_seqlens, int64_t documents,
                                               int64_t row, int64_t channels,
                                               const NoiseParams& params) {
  __shared__ float magnitude;
  __syncthreads();  // the previous row's value has been read
  if (threadIdx.x == 0) {
    const int64_t document = document_of(cu_seqlens, documents, row);
    magnitude = noise_magnitude(params, cu_seqlens[document + 1] - cu_seqlens[document], channels);
  }
  __syncthreads();
  return magnitude;
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    embedding_noise(T* x, const TokenKey* tokens, const uint32_t* step, const int32_t* cu_seqlens,
                    int64_t documents, int64_t rows, int64_t channels, NoiseParams params) {
  params.step = *step;
  constexpr int kOfCall = 4, kOfThread = kWidth == 8 ? 8 : kOfCall;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float magnitude = row_magnitude(cu_seqlens, documents, row, channels, params);
    const TokenKey token = tokens[row];
    for (int64_t first = static_cast<int64_t>(threadIdx.x) * kOfThread; first < channels;
         first += static_cast<int64_t>(kThreads) * kOfThread) {
      uint32_t words[kOfThread];
      for (int i = 0; i < kOfThread; i += kOfCall) {
        const DropoutBits bits =
            noise_bits(params, token, static_cast<uint32_t>((first + i) / kOfCall));
        for (int j = 0; j < kOfCall; ++j) words[i + j] = bits.words[j];
      }
      T* at = x + row * channels + first;
#pragma unroll
      for (int i = 0; i < kOfThread; i += kWidth) {
        if (first + i >= channels) break;  // only possible with kWidth 1
        float values[kWidth];
        load_values<kWidth>(at + i, values);
        for (int j = 0; j < kWidth; ++j)
          values[j] = rounded_sum(values[j], rounded_product(magnitude, signed_unit(words[i + j])));
        store_values<kWidth>(at + i, values);
      }
    }
  }
}

}  // namespace

void launch_embedding_noise(Type type, void* x, const TokenKey* tokens, const uint32_t* step,
                            const int32_t* cu_seqlens, int64_t documents, int64_t rows,
                            int64_t channels, const NoiseParams& params, Stream stream) {
  if (rows == 0 || channels == 0) return;
  constexpr int64_t kMaxBlocks = 1 << 20;
  const auto blocks = static_cast<unsigned>(rows < kMaxBlocks ? rows : kMaxBlocks);
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_width(in_eights(channels, {x}), [&](auto width) {
      launch(embedding_noise<T, decltype(width)::value>, dim3(blocks), kThreads, stream,
             static_cast<T*>(x), tokens, step, cu_seqlens, documents, rows, channels, params);
    });
  });
}

const Provided kLaunchers[] = {{"launch_embedding_noise", launch_embedding_noise}};

}  // namespace sftrun::kernels::cuda
