#include "cuda/device.cuh"

// One thread for each Philox block of 8 channels of a token; neighbouring threads write
// neighbouring channels.
namespace sftrun::kernels::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads)
    dropout(const T* x, T* y, const TokenKey* tokens, int64_t channels, int64_t num_blocks,
            DropoutParams params) {
  const int64_t row = blockIdx.x;
  const int64_t block = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (block >= num_blocks) return;
  const DropoutBits bits = dropout_bits(params, tokens[row], static_cast<uint32_t>(block));
#pragma unroll
  for (int lane = 0; lane < 8; ++lane) {
    const int64_t channel = lane * num_blocks + block;
    if (channel >= channels) return;  // so are those of the lanes after it
    const int64_t i = row * channels + channel;
    store(y + i, bits.lane(lane) >= params.threshold ? load(x + i) * params.scale : 0.0F);
  }
}

}  // namespace

void launch_dropout(Type type, const void* x, void* y, const TokenKey* tokens, int64_t rows,
                    int64_t channels, const DropoutParams& params, Stream stream) {
  if (rows == 0 || channels == 0) return;
  const int64_t num_blocks = (channels + 7) / 8;
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>((num_blocks + kThreads - 1) / kThreads));
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(dropout<T>, grid, kThreads, stream, static_cast<const T*>(x), static_cast<T*>(y), tokens,
           channels, num_blocks, params);
  });
}

}  // namespace sftrun::kernels::cuda
