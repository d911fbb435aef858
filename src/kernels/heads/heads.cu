#include "cuda/device.cuh"
#include "heads/heads_launch.h"

// RMSNorm of each head, where the model has one, and RoPE on queries and keys. A group of lanes of
// a warp processes a head; each lane processes channel pairs that are rotated together, and
// channels that are not rotated.
namespace sftrun::kernels::cuda {
namespace {

constexpr int kWarpLanes = 32;
/// Blocks of a multiprocessor that hide each other's loads, as far as registers suffice.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kForwardBlocks = 3;
#else
constexpr int kForwardBlocks = 4;
#endif

/// The head of this thread, and the thread's lane within the head.
template <typename T>
struct Head {
  const T *x, *grad, *weight;
  T* y;
  float* rstd;  ///< of this head
  float eps, offset;
  int64_t token;
  int lane;
  bool is_there, rotates;
};

template <typename T>
__device__ __forceinline__ Head<T> head_of_thread(const HeadsProblem& problem, int lanes) {
  const int64_t first = problem.rows[0].heads, second = problem.rows[1].heads,
                all = first + second + problem.rows[2].heads,
                number = static_cast<int64_t>(blockIdx.x) * (kThreads / lanes) +
                         static_cast<int64_t>(threadIdx.x) / lanes,
                token = number / all;
  int64_t head = number % all;
  const int kind = head < first ? 0 : head < first + second ? 1 : 2;
  if (kind > 0) head -= kind == 1 ? first : first + second;
  const HeadRows& rows = problem.rows[kind];
  const int64_t index = token * rows.heads + head, at = index * problem.head_dim,
                in_token = head * problem.head_dim;
  const bool is_there = token < problem.tokens;
  return {static_cast<const T*>(rows.x) + token * rows.x_stride + in_token,
          rows.grad == nullptr ? nullptr : static_cast<const T*>(rows.grad) + at,
          static_cast<const T*>(rows.weight),
          static_cast<T*>(rows.y) + token * rows.y_stride + in_token,
          rows.rstd == nullptr ? nullptr : rows.rstd + index,
          rows.eps,
          rows.offset,
          token,
          static_cast<int>(threadIdx.x) % lanes,
          is_there,
          rows.rotates && problem.cos != nullptr};
}

/// Calls pair(low channel, high channel, index of the angle) for rotated pairs and single(channel)
/// for the other channels, kWidth channels at a time.
template <int kWidth, typename T, typename PairBody, typename SingleBody>
__device__ __forceinline__ void for_channels(const HeadsProblem& problem, const Head<T>& head,
                                             int lanes, PairBody&& pair, SingleBody&& single) {
  if (!head.is_there) return;
  const int rotary = head.rotates ? static_cast<int>(problem.rotary_dim) : 0, half = rotary / 2,
            head_dim = static_cast<int>(problem.head_dim), first = head.lane * kWidth;
  for (int i = first; i < half; i += lanes * kWidth) pair(i, half + i, i);
  for (int i = rotary + first; i < head_dim; i += lanes * kWidth) single(i);
}

template <int kWidth>
__device__ __forceinline__ void load_angles(const HeadsProblem& problem, int64_t token, int place,
                                            float sign, float* cos, float* sin) {
  const int64_t at = token * (problem.rotary_dim / 2) + place;
  load_values<kWidth>(problem.cos + at, cos);
  load_values<kWidth>(problem.sin + at, sin);
  for (int k = 0; k < kWidth; ++k) sin[k] *= sign;
}

/// values = x * scale * (offset + weight); x if the head has no norm.
template <int kWidth, typename T>
__device__ __forceinline__ void load_normed(const Head<T>& head, int i, float scale,
                                            float* values) {
  load_values<kWidth>(head.x + i, values);
  if (head.weight == nullptr) return;
  float gains[kWidth];
  load_values<kWidth>(head.weight + i, gains);
  for (int k = 0; k < kWidth; ++k) values[k] = values[k] * scale * (head.offset + gains[k]);
}

/// kWidth consecutive elements in registers, converted where they are used.
template <int kWidth, typename T>
class Elements {
 public:
  __device__ __forceinline__ void load(const T* p) {
    if constexpr (kWidth == 8) {
      for (int i = 0; i < kWords; ++i) words_[i] = reinterpret_cast<const uint4*>(p)[i];
    } else {
      memcpy(words_, p, sizeof(T));
    }
  }
  __device__ __forceinline__ float operator[](int i) const {
    T elements[kWords * 16 / sizeof(T)];
    memcpy(elements, words_, sizeof(words_));
    return cuda::load(elements + i);
  }

 private:
  static constexpr int kWords = kWidth == 8 ? 8 * static_cast<int>(sizeof(T)) / 16 : 1;
  uint4 words_[kWords] = {};
};

/// The part of a head that one lane processes: up to kWidth channel pairs. All loads are issued
/// before the first value is used.
template <int kWidth, typename T>
struct WholePiece {
  Elements<kWidth, T> low, high, low_gains, high_gains;
  float cos[kWidth], sin[kWidth];

  __device__ __forceinline__ void load_gains(const Head<T>& head, int i, int half) {
    if (head.weight == nullptr) return;
    low_gains.load(head.weight + i);
    high_gains.load(head.weight + half + i);
  }
  __device__ __forceinline__ void load_angles_of(const HeadsProblem& problem, const Head<T>& head,
                                                 int i, float sign) {
    for (int k = 0; k < kWidth; ++k) cos[k] = 1, sin[k] = 0;
    if (head.rotates) load_angles<kWidth>(problem, head.token, i, sign, cos, sin);
  }
};

template <typename T, int kWidth>
__device__ __forceinline__ void whole_head_forward(const HeadsProblem& problem, const Head<T>& head,
                                                   int lanes) {
  const int half = static_cast<int>(problem.head_dim) / 2, i = head.lane * kWidth;
  const bool is_there = head.is_there && i < half, is_normed = head.weight != nullptr;
  WholePiece<kWidth, T> piece;
  float sum = 0, scale = 1;
  if (is_there) {
    piece.low.load(head.x + i);
    piece.high.load(head.x + half + i);
    piece.load_gains(head, i, half);
    piece.load_angles_of(problem, head, i, 1);
    for (int k = 0; k < kWidth; ++k) sum += piece.low[k] * piece.low[k];
    for (int k = 0; k < kWidth; ++k) sum += piece.high[k] * piece.high[k];
  }
  sum = lanes_sum(sum, lanes);  // executed by all threads of the warp
  if (is_normed) {
    scale = 1.0F / sqrtf(sum / static_cast<float>(problem.head_dim) + head.eps);
    if (head.is_there && head.lane == 0) *head.rstd = scale;
  }
  if (!is_there) return;
  float low[kWidth], high[kWidth];
  for (int k = 0; k < kWidth; ++k) {
    low[k] = piece.low[k], high[k] = piece.high[k];
    if (is_normed) {
      low[k] = low[k] * scale * (head.offset + piece.low_gains[k]);
      high[k] = high[k] * scale * (head.offset + piece.high_gains[k]);
    }
    if (head.rotates) {
      const Pair rotated = rotate(low[k], high[k], piece.cos[k], piece.sin[k]);
      low[k] = rotated.first, high[k] = rotated.second;
    }
  }
  store_values<kWidth>(head.y + i, low);
  store_values<kWidth>(head.y + half + i, high);
}

template <typename T, int kWidth, bool kIsWhole>
__global__ void __launch_bounds__(kThreads, !kIsWhole        ? 3
                                            : sizeof(T) == 2 ? kForwardBlocks
                                                             : 2)
    heads_forward(HeadsProblem problem, int lanes) {
  if constexpr (kIsWhole) {
    whole_head_forward<T, kWidth>(problem, head_of_thread<T>(problem, lanes), lanes);
    return;
  }
  const Head<T> head = head_of_thread<T>(problem, lanes);
  float low[kWidth], high[kWidth], cos[kWidth], sin[kWidth], sum = 0, scale = 1;
  if (head.weight != nullptr) {
    const auto add = [&](int i) {
      load_values<kWidth>(head.x + i, low);
      for (int k = 0; k < kWidth; ++k) sum += low[k] * low[k];
    };
    for_channels<kWidth>(
        problem, head, lanes,
        [&](int i, int j, int) {
          add(i);
          add(j);
        },
        add);
  }
  sum = lanes_sum(sum, lanes);  // executed by all threads of the warp
  if (head.weight != nullptr) {
    scale = 1.0F / sqrtf(sum / static_cast<float>(problem.head_dim) + head.eps);
    if (head.is_there && head.lane == 0) *head.rstd = scale;
  }
  for_channels<kWidth>(
      problem, head, lanes,
      [&](int i, int j, int place) {
        load_normed<kWidth>(head, i, scale, low);
        load_normed<kWidth>(head, j, scale, high);
        load_angles<kWidth>(problem, head.token, place, 1, cos, sin);
        for (int k = 0; k < kWidth; ++k) {
          const Pair rotated = rotate(low[k], high[k], cos[k], sin[k]);
          low[k] = rotated.first, high[k] = rotated.second;
        }
        store_values<kWidth>(head.y + i, low);
        store_values<kWidth>(head.y + j, high);
      },
      [&](int i) {
        load_normed<kWidth>(head, i, scale, low);
        store_values<kWidth>(head.y + i, low);
      });
}

/// Gradients of kWidth channel pairs, with the rotation undone.
template <int kWidth, typename T>
__device__ __forceinline__ void load_unrotated(const HeadsProblem& problem, const Head<T>& head,
                                               int i, int j, int place, float* low, float* high) {
  float cos[kWidth], sin[kWidth];
  load_values<kWidth>(head.grad + i, low);
  load_values<kWidth>(head.grad + j, high);
  load_angles<kWidth>(problem, head.token, place, -1, cos, sin);
  for (int k = 0; k < kWidth; ++k) {
    const Pair back = rotate(low[k], high[k], cos[k], sin[k]);
    low[k] = back.first, high[k] = back.second;
  }
}

template <typename T, int kWidth>
__device__ __forceinline__ void whole_head_backward(const HeadsProblem& problem,
                                                    const Head<T>& head, int lanes) {
  const int half = static_cast<int>(problem.head_dim) / 2, i = head.lane * kWidth;
  const bool is_there = head.is_there && i < half, is_normed = head.weight != nullptr;
  WholePiece<kWidth, T> piece;
  Elements<kWidth, T> low_grads, high_grads;
  float low[kWidth] = {}, high[kWidth] = {}, dot = 0, scale = 1;
  if (is_there) {
    low_grads.load(head.grad + i);
    high_grads.load(head.grad + half + i);
    piece.load_angles_of(problem, head, i, -1);
    if (is_normed) {
      piece.low.load(head.x + i);
      piece.high.load(head.x + half + i);
      piece.load_gains(head, i, half);
      scale = *head.rstd;
    }
    for (int k = 0; k < kWidth; ++k) {
      low[k] = low_grads[k], high[k] = high_grads[k];
      if (!head.rotates) continue;
      const Pair back = rotate(low[k], high[k], piece.cos[k], piece.sin[k]);
      low[k] = back.first, high[k] = back.second;
    }
    if (is_normed) {
      for (int k = 0; k < kWidth; ++k)
        dot += low[k] * (head.offset + piece.low_gains[k]) * piece.low[k];
      for (int k = 0; k < kWidth; ++k)
        dot += high[k] * (head.offset + piece.high_gains[k]) * piece.high[k];
    }
  }
  dot = lanes_sum(dot, lanes);
  if (!is_there) return;
  if (is_normed) {
    const float back = dot / static_cast<float>(problem.head_dim) * scale * scale;
    for (int k = 0; k < kWidth; ++k) {
      low[k] = scale * (low[k] * (head.offset + piece.low_gains[k]) - piece.low[k] * back);
      high[k] = scale * (high[k] * (head.offset + piece.high_gains[k]) - piece.high[k] * back);
    }
  }
  store_values<kWidth>(head.y + i, low);
  store_values<kWidth>(head.y + half + i, high);
}

template <typename T, int kWidth, bool kIsWhole>
__global__ void __launch_bounds__(kThreads, kIsWhole && sizeof(T) == 2 ? 3 : 1)
    heads_backward(HeadsProblem problem, int lanes) {
  if constexpr (kIsWhole) {
    whole_head_backward<T, kWidth>(problem, head_of_thread<T>(problem, lanes), lanes);
    return;
  }
  const Head<T> head = head_of_thread<T>(problem, lanes);
  const bool is_normed = head.weight != nullptr;
  float low[kWidth], high[kWidth], values[kWidth], gains[kWidth], dot = 0;
  const auto add_dot = [&](int i, const float* grads) {
    load_values<kWidth>(head.x + i, values);
    load_values<kWidth>(head.weight + i, gains);
    for (int k = 0; k < kWidth; ++k) dot += grads[k] * (head.offset + gains[k]) * values[k];
  };
  if (is_normed) {
    for_channels<kWidth>(
        problem, head, lanes,
        [&](int i, int j, int place) {
          load_unrotated<kWidth>(problem, head, i, j, place, low, high);
          add_dot(i, low);
          add_dot(j, high);
        },
        [&](int i) {
          load_values<kWidth>(head.grad + i, low);
          add_dot(i, low);
        });
  }
  dot = lanes_sum(dot, lanes);
  const float scale = is_normed && head.is_there ? *head.rstd : 1.0F,
              back = dot / static_cast<float>(problem.head_dim) * scale * scale;
  const auto store_grad = [&](int i, float* grads) {
    if (is_normed) {
      load_values<kWidth>(head.x + i, values);
      load_values<kWidth>(head.weight + i, gains);
      for (int k = 0; k < kWidth; ++k)
        grads[k] = scale * (grads[k] * (head.offset + gains[k]) - values[k] * back);
    }
    store_values<kWidth>(head.y + i, grads);
  };
  for_channels<kWidth>(
      problem, head, lanes,
      [&](int i, int j, int place) {
        load_unrotated<kWidth>(problem, head, i, j, place, low, high);
        store_grad(i, low);
        store_grad(j, high);
      },
      [&](int i) {
        load_values<kWidth>(head.grad + i, low);
        store_grad(i, low);
      });
}

/// Lanes per head: a power of two of at least the number of kWidth-channel pieces, pairs counted
/// once; 4 to 32.
int lanes_for(const HeadsProblem& problem, int width) {
  const int64_t half = problem.cos == nullptr ? 0 : problem.rotary_dim / 2,
                pieces = (half + (problem.head_dim - 2 * half) + width - 1) / width;
  int lanes = 4;
  while (lanes < kWarpLanes && lanes < pieces) lanes *= 2;
  return lanes;
}

bool heads_in_eights(Type type, const HeadsProblem& problem) {
  for (const HeadRows& rows : problem.rows) {
    if (rows.heads == 0) continue;
    if (!strides_in_eights(type, {rows.x_stride, rows.y_stride}) ||
        !in_eights(problem.head_dim, {rows.x, rows.grad, rows.y, rows.weight}))
      return false;
  }
  return problem.cos == nullptr || in_eights(problem.rotary_dim / 2, {problem.cos, problem.sin});
}

/// Whether one pair of pieces for each lane is all of a head, rotated or not.
bool heads_are_whole(const HeadsProblem& problem, int width, int lanes) {
  return problem.cos != nullptr && problem.rotary_dim == problem.head_dim &&
         problem.head_dim / 2 <= int64_t{width} * lanes;
}

template <typename Kernels>
void launch_heads(Type type, const HeadsProblem& problem, Stream stream, Kernels&& kernel_of) {
  int64_t heads = 0;
  for (const HeadRows& rows : problem.rows) heads += problem.tokens * rows.heads;
  if (heads == 0) return;
  with_width(heads_in_eights(type, problem), [&](auto width) {
    const int lanes = lanes_for(problem, decltype(width)::value);
    const int64_t of_block = kThreads / lanes;
    launch(kernel_of(width, heads_are_whole(problem, decltype(width)::value, lanes)),
           static_cast<unsigned>((heads + of_block - 1) / of_block), kThreads, stream, problem,
           lanes);
  });
}

}  // namespace

void launch_heads_forward(Type type, const HeadsProblem& problem, Stream stream) {
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch_heads(type, problem, stream, [](auto width, bool is_whole) {
      constexpr int kWidth = decltype(width)::value;
      return is_whole ? heads_forward<T, kWidth, true> : heads_forward<T, kWidth, false>;
    });
  });
}

void launch_heads_backward(Type type, const HeadsProblem& problem, Stream stream) {
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch_heads(type, problem, stream, [](auto width, bool is_whole) {
      constexpr int kWidth = decltype(width)::value;
      return is_whole ? heads_backward<T, kWidth, true> : heads_backward<T, kWidth, false>;
    });
  });
}

const Provided kLaunchers[] = {{"launch_heads_forward", launch_heads_forward},
                               {"launch_heads_backward", launch_heads_backward}};

}  // namespace sftrun::kernels::cuda
