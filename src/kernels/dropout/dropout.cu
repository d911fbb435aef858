#include "cuda/device.cuh"
#include "dropout/dropout_launch.h"

// One Philox call yields the bits of 8 channels of a token, num_blocks apart. A thread makes kWidth
// calls with consecutive indices, so it has kWidth consecutive channels in each of the 8 lanes.
namespace sftrun::kernels::cuda {
namespace {

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    dropout(const T* x, T* y, const TokenKey* tokens, const uint32_t* step, int64_t channels,
            int64_t num_blocks, DropoutParams params) {
  params.step = *step;
  const int64_t row = blockIdx.x;
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kWidth;
  if (first >= num_blocks) return;
  DropoutBits bits[kWidth];
  for (int k = 0; k < kWidth; ++k)
    bits[k] = dropout_bits(params, tokens[row], static_cast<uint32_t>(first + k));
#pragma unroll
  for (int lane = 0; lane < 8; ++lane) {
    const int64_t channel = lane * num_blocks + first;
    if (channel >= channels) return;  // the channels of later lanes are out of range, too
    const int64_t i = row * channels + channel;
    float values[kWidth];
    load_values<kWidth>(x + i, values);
    for (int k = 0; k < kWidth; ++k)
      values[k] = bits[k].lane(lane) >= params.threshold ? values[k] * params.scale : 0.0F;
    store_values<kWidth>(y + i, values);
  }
}

}  // namespace

void launch_dropout(Type type, const void* x, void* y, const TokenKey* tokens, const uint32_t* step,
                    int64_t rows, int64_t channels, const DropoutParams& params, Stream stream) {
  if (rows == 0 || channels == 0) return;
  const int64_t num_blocks = (channels + 7) / 8;
  // Width 8 if no lane ends inside a group of eight.
  const bool is_whole = channels % 8 == 0 && in_eights(num_blocks, {x, y});
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    with_width(is_whole, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      const int64_t threads = num_blocks / kWidth;
      const dim3 grid(static_cast<unsigned>(rows),
                      static_cast<unsigned>((threads + kThreads - 1) / kThreads));
      launch(dropout<T, kWidth>, grid, kThreads, stream, static_cast<const T*>(x),
             static_cast<T*>(y), tokens, step, channels, num_blocks, params);
    });
  });
}

const Provided kLaunchers[] = {{"launch_dropout", launch_dropout}};

}  // namespace sftrun::kernels::cuda
