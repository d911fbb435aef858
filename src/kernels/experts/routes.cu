#include "cuda/device.cuh"
#include "experts/routes_launch.h"

// Routing on the device: choice of experts per token (one warp per token), sorting of the routes by
// expert (one block per expert), and the gradient of the router's logits.
namespace sftrun::kernels::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffffU;

__device__ __forceinline__ int lane_of_thread() {
  return static_cast<int>(threadIdx.x % 32);
}
__device__ __forceinline__ int64_t token_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
}
unsigned blocks_of_warps(int64_t tokens) {
  return static_cast<unsigned>((tokens + kWarps - 1) / kWarps);
}

/// Sort key of a token's choices, larger first: by logit, NaN before all others (as in LibTorch's
/// topk), then by lower expert index. Keys are distinct and in [1, 2^64 - 2].
__device__ __forceinline__ uint64_t choice_key(float logit, uint32_t expert) {
  constexpr uint32_t kNan = 0xfffffffeU, kSign = 0x80000000U;
  const float value = logit + 0.0F;  // -0 becomes 0
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  bits = value != value ? kNan : (bits & kSign) != 0 ? ~bits : bits | kSign;
  return static_cast<uint64_t>(bits) << 32 | (0xffffffffU - expert);
}
__device__ __forceinline__ int32_t expert_of(uint64_t key) {
  return static_cast<int32_t>(0xffffffffU - static_cast<uint32_t>(key));
}

/// The largest key below `bound`, in every lane; 0 if none.
__device__ __forceinline__ uint64_t next_choice(const float* logits, int experts, uint64_t bound) {
  uint64_t best = 0;
  for (int expert = lane_of_thread(); expert < experts; expert += 32) {
    const uint64_t key = choice_key(logits[expert], static_cast<uint32_t>(expert));
    if (key < bound && key > best) best = key;
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(kAllLanes, best, offset);
    if (other > best) best = other;
  }
  return best;
}

__device__ __forceinline__ float largest_of(const float* logits, int experts) {
  float largest = -INFINITY;
  for (int expert = lane_of_thread(); expert < experts; expert += 32)
    largest = fmaxf(largest, logits[expert]);
  for (int offset = 16; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  return largest;
}

__global__ void __launch_bounds__(kThreads)
    route_tokens(RouterChoice choice, const float* logits, const float* factors) {
  const int64_t token = token_of_warp();
  if (token >= choice.tokens) return;  // uniform across the warp
  const int experts = static_cast<int>(choice.experts), top_k = static_cast<int>(choice.top_k);
  const float* own = logits + token * experts;
  int32_t* chosen = choice.chosen + token * top_k;
  float* weights = choice.weights + token * top_k;
  uint64_t key = ~0ULL;
  float largest = 0, of_chosen = 0;
  for (int place = 0; place < top_k; ++place) {
    key = next_choice(own, experts, key);
    const int32_t expert = expert_of(key);
    if (place == 0) largest = own[expert];
    const float term = expf(own[expert] - largest);
    of_chosen += term;
    if (lane_of_thread() == 0) chosen[place] = expert, weights[place] = term;
  }
  float sum = of_chosen;
  if (!choice.normalise) {
    sum = 0;
    for (int expert = lane_of_thread(); expert < experts; expert += 32)
      sum += expf(own[expert] - largest);
    sum = lanes_sum(sum, 32);
  }
  __syncwarp();  // makes lane 0's writes visible
  for (int place = lane_of_thread(); place < top_k; place += 32) {
    const float weight = weights[place] / sum;
    weights[place] = weight;
    if (factors != nullptr) choice.scaled[token * top_k + place] = weight * factors[chosen[place]];
  }
}

/// With p the softmax of the logits, w and d the chosen experts' weights and their gradients, and e
/// the gradient of p, the gradient of the logits is
///     p (e - <p, e>) + w (d - <w, d>)     if the weights are normalised,
///     p (e - <p, e> - <w, d>) + w d       otherwise.
__global__ void __launch_bounds__(kThreads)
    route_tokens_backward(RouterChoice choice, RouterGradients grads) {
  const int64_t token = token_of_warp();
  if (token >= choice.tokens) return;
  const int experts = static_cast<int>(choice.experts), top_k = static_cast<int>(choice.top_k);
  const float* logits = grads.logits + token * experts;
  const int32_t* chosen = choice.chosen + token * top_k;
  const float* weights = choice.weights + token * top_k;
  const auto grad_of = [&](int place) {
    const float grad = grads.d_scaled[token * top_k + place];
    return grads.factors == nullptr ? grad : grad * grads.factors[chosen[place]];
  };
  float along = 0;
  for (int place = lane_of_thread(); place < top_k; place += 32)
    along += weights[place] * grad_of(place);
  along = lanes_sum(along, 32);

  float largest = 0, inverse = 0, mean = 0;  // of the softmax
  const bool reads_all = !choice.normalise || grads.d_probability != nullptr;
  if (reads_all) {
    largest = largest_of(logits, experts);
    float sum = 0, weighted = 0;
    for (int expert = lane_of_thread(); expert < experts; expert += 32) {
      const float term = expf(logits[expert] - largest);
      sum += term;
      if (grads.d_probability != nullptr) weighted += term * grads.d_probability[expert];
    }
    inverse = 1.0F / lanes_sum(sum, 32);
    mean = lanes_sum(weighted, 32) * inverse;
    if (!choice.normalise) mean += along;
  }
  float* d_logits = grads.d_logits + token * experts;
  for (int expert = lane_of_thread(); expert < experts; expert += 32) {
    float value = 0;
    if (reads_all) {
      const float grad = grads.d_probability == nullptr ? 0.0F : grads.d_probability[expert];
      value = expf(logits[expert] - largest) * inverse * (grad - mean);
    }
    d_logits[expert] = grads.scale * value;
  }
  __syncwarp();  // all lanes' writes are visible before the additions below
  for (int place = lane_of_thread(); place < top_k; place += 32) {
    const float grad = choice.normalise ? grad_of(place) - along : grad_of(place);
    d_logits[chosen[place]] += grads.scale * weights[place] * grad;
  }
}

/// Contiguous range of routes per warp, in multiples of 32 * kWidth.
struct WarpRoutes {
  int64_t begin, end;
};
template <int kWidth>
__device__ __forceinline__ WarpRoutes routes_of_warp(int64_t routes) {
  constexpr int64_t kTurn = 32 * kWidth;
  const int64_t turns = (routes + kTurn - 1) / kTurn,
                length = (turns + kWarps - 1) / kWarps * kTurn, begin = threadIdx.x / 32 * length,
                end = begin + length;
  return {begin, end < routes ? end : routes};
}
template <int kWidth>
__device__ __forceinline__ void load_experts(const int32_t* chosen, int32_t* experts) {
  if constexpr (kWidth == 4) {
    const int4 four = *reinterpret_cast<const int4*>(chosen);
    experts[0] = four.x, experts[1] = four.y, experts[2] = four.z, experts[3] = four.w;
  } else {
    experts[0] = *chosen;
  }
}

__device__ __forceinline__ int lanes_count(int value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}
/// Sum of `value` over the lanes before this one.
__device__ __forceinline__ int count_before(int value) {
  int sum = value;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_sync(kAllLanes, sum, (lane_of_thread() - offset) & 31);
    if (lane_of_thread() >= offset) sum += other;
  }
  return sum - value;
}

/// One block per expert: counts the routes of all lower experts, then writes its own routes in slot
/// order. Every block reads all choices (from cache); no block waits for another.
template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    sort_routes(SortedRoutes sorted, const int32_t* chosen) {
  __shared__ int own_of_warp[kWarps];
  __shared__ int before_of_warp[kWarps];
  const auto expert = static_cast<int32_t>(blockIdx.x);
  const int lane = lane_of_thread(), warp = static_cast<int>(threadIdx.x) / 32;
  const WarpRoutes routes = routes_of_warp<kWidth>(sorted.routes);
  int own = 0, before = 0;
  for (int64_t i = routes.begin + lane * kWidth; i < routes.end; i += 32 * kWidth) {
    int32_t experts[kWidth];
    load_experts<kWidth>(chosen + i, experts);
    for (int k = 0; k < kWidth; ++k) {
      own += experts[k] == expert ? 1 : 0;
      before += experts[k] < expert ? 1 : 0;
    }
  }
  own = lanes_count(own), before = lanes_count(before);
  if (lane == 0) own_of_warp[warp] = own, before_of_warp[warp] = before;
  __syncthreads();
  int next = 0, end = 0;
  for (int w = 0; w < kWarps; ++w) {
    next += before_of_warp[w] + (w < warp ? own_of_warp[w] : 0);
    end += before_of_warp[w] + own_of_warp[w];
  }
  if (threadIdx.x == 0) sorted.ends[expert] = end;
  if (own == 0) return;  // uniform across the warp
  for (int64_t turn = routes.begin; turn < routes.end; turn += 32 * kWidth) {
    const int64_t first = turn + lane * kWidth;
    int32_t experts[kWidth];
    int matches = 0;
    if (first < routes.end) {
      load_experts<kWidth>(chosen + first, experts);
      for (int k = 0; k < kWidth; ++k) matches += experts[k] == expert ? 1 : 0;
    }
    const int ahead = count_before(matches);
    int row = next + ahead;
    if (matches > 0) {
      for (int k = 0; k < kWidth; ++k) {
        if (experts[k] != expert) continue;
        const auto slot = static_cast<int32_t>(first + k);
        sorted.slots[row] = slot;
        sorted.experts[row] = expert;
        sorted.rows[slot] = row++;
      }
    }
    next += __shfl_sync(kAllLanes, ahead + matches, 31);
  }
}

}  // namespace

void launch_route_tokens(const RouterChoice& choice, const float* logits, const float* factors,
                         Stream stream) {
  if (choice.tokens == 0) return;
  launch(route_tokens, blocks_of_warps(choice.tokens), kThreads, stream, choice, logits, factors);
}

void launch_route_tokens_backward(const RouterChoice& choice, const RouterGradients& grads,
                                  Stream stream) {
  if (choice.tokens == 0) return;
  launch(route_tokens_backward, blocks_of_warps(choice.tokens), kThreads, stream, choice, grads);
}

void launch_sort_routes(const SortedRoutes& sorted, const int32_t* chosen, Stream stream) {
  if (sorted.num_experts == 0) return;
  const auto blocks = static_cast<unsigned>(sorted.num_experts);
  const bool in_fours =
      sorted.routes % 4 == 0 && reinterpret_cast<uintptr_t>(chosen) % sizeof(int4) == 0;
  if (in_fours)
    launch(sort_routes<4>, blocks, kThreads, stream, sorted, chosen);
  else
    launch(sort_routes<1>, blocks, kThreads, stream, sorted, chosen);
}

const Provided kLaunchers[] = {{"launch_route_tokens", launch_route_tokens},
                               {"launch_route_tokens_backward", launch_route_tokens_backward},
                               {"launch_sort_routes", launch_sort_routes}};

}  // namespace sftrun::kernels::cuda
