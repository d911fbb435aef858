#include "adamw/adamw_launch.h"
#include "cuda/device.cuh"

namespace sftrun::kernels::cuda {
namespace {

/// Whether the gate is open or null; sets `grad_scale` from the gate.
template <typename Params>
__device__ __forceinline__ bool passes(const UpdateGate* gate, Params& params) {
  if (gate == nullptr) return true;
  params.grad_scale = gate->grad_scale;
  return gate->is_open != 0;
}

template <typename T>
__device__ __forceinline__ void update_one(float* param, const float* grad, float* exp_avg,
                                           float* exp_avg_sq, T* compute, int64_t i,
                                           const AdamWParams& params) {
  const AdamWElement updated =
      adamw_element({param[i], exp_avg[i], exp_avg_sq[i]}, grad[i], params);
  param[i] = updated.param;
  exp_avg[i] = updated.exp_avg;
  exp_avg_sq[i] = updated.exp_avg_sq;
  if (compute != nullptr) store(compute + i, updated.param);
}

template <typename T>
__device__ __forceinline__ void update_four(float* param, const float* grad, float* exp_avg,
                                            float* exp_avg_sq, T* compute, int64_t i,
                                            const AdamWParams& params) {
  float values[4], grads[4], averages[4], squares[4];
  load_four(param + i, values);
  load_four(grad + i, grads);
  load_four(exp_avg + i, averages);
  load_four(exp_avg_sq + i, squares);
  for (int k = 0; k < 4; ++k) {
    const AdamWElement updated =
        adamw_element({values[k], averages[k], squares[k]}, grads[k], params);
    values[k] = updated.param, averages[k] = updated.exp_avg, squares[k] = updated.exp_avg_sq;
  }
  store_four(param + i, values);
  store_four(exp_avg + i, averages);
  store_four(exp_avg_sq + i, squares);
  if (compute != nullptr) store_four(compute + i, values);
}

/// @tparam kWidth elements per thread and iteration: 4 if all pointers are aligned, else 1
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    adamw(float* param, const float* grad, float* exp_avg, float* exp_avg_sq, T* compute, int64_t n,
          AdamWParams params, const UpdateGate* gate) {
  if (!passes(gate, params)) return;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth; i < n;
       i += stride) {
    if constexpr (kWidth == 1) {
      update_one(param, grad, exp_avg, exp_avg_sq, compute, i, params);
    } else if (i + kWidth <= n) {
      update_four(param, grad, exp_avg, exp_avg_sq, compute, i, params);
    } else {
#pragma unroll 1
      for (int64_t last = i; last < n; ++last)
        update_one(param, grad, exp_avg, exp_avg_sq, compute, last, params);
    }
  }
}

/// partial[block] = sum of squares of one chunk: fp32 over 16 elements of a thread, then fp64.
/// @tparam kIsAligned x is aligned to 16 bytes; does not change the result
template <bool kIsAligned>
__global__ void __launch_bounds__(kThreads) sum_chunk(const float* x, int64_t n, double* partial) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSumChunk;
  const int64_t end = first + kSumChunk < n ? first + kSumChunk : n;
  constexpr int kEight = 8, kRuns = 2, kStep = kEight * kThreads;
  double sum = 0;
  for (int64_t begin = first + static_cast<int64_t>(threadIdx.x) * kEight; begin < end;
       begin += kRuns * kStep) {
    float run = 0, values[kEight];
    for (int64_t i = begin; i < begin + kRuns * kStep; i += kStep) {
      if (kIsAligned && i + kEight <= end) {
        load_eight(x + i, values);
      } else {
        for (int k = 0; k < kEight; ++k) values[k] = i + k < end ? x[i + k] : 0.0F;
      }
      for (int k = 0; k < kEight; ++k) run += values[k] * values[k];
    }
    sum += static_cast<double>(run);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    sum_partials(const double* partial, int64_t count, double* total) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total = sum;
}

__device__ __forceinline__ float warp_largest(float value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
  return value;
}

constexpr int kOwn = 8;  // elements of a moment block per lane; one warp processes a block
static_assert(kOwn * 32 == kStateBlock);

/// A lane's elements; in a short block the last lanes have fewer.
struct OwnStates {
  float params[kOwn], grads[kOwn];
  uint8_t exp_avg[kOwn], exp_avg_sq[kOwn];
};
__device__ __forceinline__ void load_codes(const uint8_t* from, uint8_t* codes, bool is_aligned) {
  if (!is_aligned) {
    for (int k = 0; k < kOwn; ++k) codes[k] = from[k];
    return;
  }
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  memcpy(codes, &words, sizeof(words));
}
__device__ __forceinline__ void store_codes(uint8_t* to, const uint8_t* codes, bool is_aligned) {
  if (!is_aligned) {
    for (int k = 0; k < kOwn; ++k) to[k] = codes[k];
    return;
  }
  uint2 words;
  memcpy(&words, codes, sizeof(words));
  *reinterpret_cast<uint2*>(to) = words;
}

/// A map in shared memory, where lanes read different addresses at the same time.
struct SharedMap {
  float values[256];
  uint16_t tree[kStateTree];
};
__device__ __forceinline__ void load_map(SharedMap& here, const StateMap& map) {
  static_assert(kStateTree >= 256);
  for (int i = static_cast<int>(threadIdx.x); i < kStateTree; i += kThreads) {
    here.tree[i] = map.tree[i];
    if (i < 256) here.values[i] = map.values[i];
  }
}

/// One warp per block of moments.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    adamw_8bit(float* param, const float* grad, StateBlocks blocks, T* compute,
               StateMap exp_avg_map, StateMap exp_avg_sq_map, AdamW8bitParams params,
               bool is_aligned, const UpdateGate* gate) {
  if (!passes(gate, params)) return;
  __shared__ SharedMap m_map, v_map;
  load_map(m_map, exp_avg_map);
  load_map(v_map, exp_avg_sq_map);
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
       block < blocks.count; block += stride) {
    const int64_t begin = blocks.begin[block], i = begin + lane * kOwn;
    const int left = blocks.numel[block] - lane * kOwn, count = left < kOwn ? left : kOwn;
    const bool is_whole = is_aligned && begin % kOwn == 0 && count == kOwn;
    uint8_t* m_codes = blocks.first.exp_avg + block * kStateBlock + lane * kOwn;
    uint8_t* v_codes = blocks.first.exp_avg_sq + block * kStateBlock + lane * kOwn;
    OwnStates own;
    load_codes(m_codes, own.exp_avg, is_aligned);
    load_codes(v_codes, own.exp_avg_sq, is_aligned);
    if (is_whole) {
      load_eight(param + i, own.params);
      load_eight(grad + i, own.grads);
    } else {
      for (int k = 0; k < count; ++k) own.params[k] = param[i + k], own.grads[k] = grad[i + k];
    }
    float* m_absmax = blocks.first.exp_avg_absmax + block;
    float* v_absmax = blocks.first.exp_avg_sq_absmax + block;
    const float m_factor = *m_absmax, v_factor = *v_absmax;
    float averages[kOwn], squares[kOwn], m_largest = 0, v_largest = 0;
    for (int k = 0; k < count; ++k) {
      const AdamWElement e = adamw_8bit_element(
          {own.params[k], rounded_product(m_map.values[own.exp_avg[k]], m_factor),
           rounded_product(v_map.values[own.exp_avg_sq[k]], v_factor)},
          own.grads[k], params);
      own.params[k] = e.param, averages[k] = e.exp_avg, squares[k] = e.exp_avg_sq;
      m_largest = fmaxf(m_largest, fabsf(e.exp_avg));
      v_largest = fmaxf(v_largest, e.exp_avg_sq);
    }
    m_largest = warp_largest(m_largest);  // all lanes have read the old absmax
    v_largest = warp_largest(v_largest);
    for (int k = 0; k < count; ++k) {
      own.exp_avg[k] = state_code(m_map.tree, state_place(averages[k], 1.0F / m_largest));
      own.exp_avg_sq[k] = state_code(v_map.tree, state_place(squares[k], 1.0F / v_largest));
    }
    if (count > 0) {
      store_codes(m_codes, own.exp_avg, is_aligned);
      store_codes(v_codes, own.exp_avg_sq, is_aligned);
    }
    if (is_whole) {
      store_eight(param + i, own.params);
      if (compute != nullptr) store_eight(compute + i, own.params);
    } else {
      for (int k = 0; k < count; ++k) {
        param[i + k] = own.params[k];
        if (compute != nullptr) store(compute + i + k, own.params[k]);
      }
    }
    if (lane == 0) {
      *m_absmax = m_largest;
      *v_absmax = v_largest;
    }
  }
}

}  // namespace

void launch_adamw(Type type, float* param, const float* grad, float* exp_avg, float* exp_avg_sq,
                  void* compute, int64_t n, const AdamWParams& params, Stream stream,
                  const UpdateGate* gate) {
  if (n == 0) return;
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    const bool is_aligned = in_eights(0, {param, grad, exp_avg, exp_avg_sq, compute});
    const auto kernel = is_aligned ? adamw<T, 4> : adamw<T, 1>;
    launch(kernel, grid_of(is_aligned ? (n + 3) / 4 : n), kThreads, stream, param, grad, exp_avg,
           exp_avg_sq, static_cast<T*>(compute), n, params, gate);
  });
}

void launch_adamw_8bit(Type type, float* param, const float* grad, const StateBlocks& blocks,
                       void* compute, const StateMap& exp_avg_map, const StateMap& exp_avg_sq_map,
                       const AdamW8bitParams& params, Stream stream, const UpdateGate* gate) {
  if (blocks.count == 0) return;
  constexpr unsigned kMaxBlocks = 1 << 12;  // each block loads the maps once
  const unsigned grid = grid_of(blocks.count * 32);
  for_type(type, [&](auto* null) {
    using T = Element<decltype(null)>;
    launch(adamw_8bit<T>, grid < kMaxBlocks ? grid : kMaxBlocks, kThreads, stream, param, grad,
           blocks, static_cast<T*>(compute), exp_avg_map, exp_avg_sq_map, params,
           in_eights(0, {param, grad, compute, blocks.first.exp_avg, blocks.first.exp_avg_sq}),
           gate);
  });
}

void launch_sum_of_squares(const float* x, int64_t n, double* partial, double* total,
                           Stream stream) {
  const int64_t chunks = (n + kSumChunk - 1) / kSumChunk;
  const auto kernel = in_eights(0, {x}) ? sum_chunk<true> : sum_chunk<false>;
  if (chunks > 0) launch(kernel, static_cast<unsigned>(chunks), kThreads, stream, x, n, partial);
  launch(sum_partials, 1, kThreads, stream, partial, chunks, total);
}

const Provided kLaunchers[] = {{"launch_adamw", launch_adamw},
                               {"launch_adamw_8bit", launch_adamw_8bit},
                               {"launch_sum_of_squares", launch_sum_of_squares}};

}  // namespace sftrun::kernels::cuda
