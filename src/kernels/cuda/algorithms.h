#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "sftrun/kernels/cpu_table.h"

#ifdef __CUDACC__
#define SFTRUN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define SFTRUN_HOST_DEVICE inline
#endif

/// Element-wise arithmetic of the CUDA kernels. Also compiled for the host, where tests compare it
/// with `cpu_kernels()`.
namespace sftrun::kernels::cuda {

struct Pair {
  float first, second;
};

/// (a, b) -> (a cos - b sin, b cos + a sin)
SFTRUN_HOST_DEVICE Pair rotate(float a, float b, float cos, float sin) {
  return {a * cos - b * sin, b * cos + a * sin};
}

SFTRUN_HOST_DEVICE float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

/// Each activation as x sigmoid(inner(x)): silu with inner = x; gelu (tanh approximation) with
/// inner = 2 sqrt(2 / pi) (x + 0.044715 x^3).
struct GateSlope {
  float inner, slope;  ///< argument of the sigmoid and its derivative
};
SFTRUN_HOST_DEVICE GateSlope gate_slope(Gating gating, float x) {
  if (gating.activation == Activation::kSilu) return {x, 1.0F};
  if (gating.activation == Activation::kClampedSwiglu) return {gating.alpha * x, gating.alpha};
  constexpr float kTwiceRoot = 1.5957691216057308F, kCubic = 0.044715F;
  return {kTwiceRoot * (x + kCubic * x * x * x), kTwiceRoot * (1.0F + 3.0F * kCubic * x * x)};
}
/// NaN stays NaN, as with torch.clamp (unlike fminf).
SFTRUN_HOST_DEVICE float at_most(float x, float limit) {
  return x > limit ? limit : x;
}
SFTRUN_HOST_DEVICE float within(float x, float limit) {
  return -at_most(-at_most(x, limit), limit);
}
SFTRUN_HOST_DEVICE float gated(Gating gating, float gate, float up) {
  if (gating.activation == Activation::kClampedSwiglu) {
    gate = at_most(gate, gating.limit);
    up = within(up, gating.limit) + 1.0F;
  }
  return gate * sigmoid(gate_slope(gating, gate).inner) * up;
}
/// Gradients of gate and up; 0 where a clamp is active.
SFTRUN_HOST_DEVICE Pair gated_gradient(Gating gating, float dh, float gate, float up) {
  bool gate_passes = true, up_passes = true;
  if (gating.activation == Activation::kClampedSwiglu) {
    gate_passes = gate <= gating.limit;
    up_passes = up <= gating.limit && up >= -gating.limit;
    gate = at_most(gate, gating.limit);
    up = within(up, gating.limit) + 1.0F;
  }
  const GateSlope at_gate = gate_slope(gating, gate);
  const float s = sigmoid(at_gate.inner);
  return {gate_passes ? dh * up * s * (1.0F + gate * (1.0F - s) * at_gate.slope) : 0.0F,
          up_passes ? dh * gate * s : 0.0F};
}

/// A logit, soft-capped if `cap` > 0, and the derivative of the cap at a capped value.
SFTRUN_HOST_DEVICE float capped(float logit, float cap) {
  return cap > 0 ? cap * tanhf(logit / cap) : logit;
}
SFTRUN_HOST_DEVICE float cap_slope(float value, float cap) {
  return cap > 0 ? 1.0F - value / cap * (value / cap) : 1.0F;
}

/// 8 x 16 random bits of one Philox call (Philox 4x32-10, Salmon et al., SC 2011).
struct DropoutBits {
  uint32_t words[4];
  SFTRUN_HOST_DEVICE uint32_t lane(int index) const {
    return (words[index / 2] >> (index % 2 * 16)) & 0xffffU;
  }
};

/// Lane l of call b decides channel l * num_blocks + b, bit-identical to dropout_cpu.inl.
SFTRUN_HOST_DEVICE DropoutBits dropout_bits(const DropoutParams& params, TokenKey token,
                                            uint32_t block) {
  uint32_t c0 = block, c1 = token.position, c2 = token.document, c3 = params.module;
  uint32_t k0 = static_cast<uint32_t>(params.seed) ^ params.step,
           k1 = static_cast<uint32_t>(params.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ULL * c0, p1 = 0xCD9E8D57ULL * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {{c0, c1, c2, c3}};
}

/// Random words of channels [4 * block, 4 * block + 4) of a token's noise. The module number
/// differs from those of dropout, which count from 0.
SFTRUN_HOST_DEVICE DropoutBits noise_bits(const NoiseParams& params, TokenKey token,
                                          uint32_t block) {
  DropoutParams dropout;
  dropout.seed = params.seed, dropout.step = params.step, dropout.module = 0xFFFFFFFFU;
  return dropout_bits(dropout, token, block);
}
/// The high 24 bits as a value in [-1, 1), exact in fp32.
SFTRUN_HOST_DEVICE float signed_unit(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-23F - 1.0F;  // exact
}
/// Magnitude of the noise in a document of this many tokens.
SFTRUN_HOST_DEVICE float noise_magnitude(const NoiseParams& params, int64_t tokens,
                                         int64_t channels) {
  return static_cast<float>(params.scaled_alpha / sqrt(static_cast<double>(tokens * channels)));
}

/// Largest logit so far, and sum of exp(logit - largest).
struct SoftmaxState {
  float largest = -3.402823466e38F;
  float sum = 0;
};

/// NaN never becomes the largest logit but reaches the sum.
SFTRUN_HOST_DEVICE void add_logit(SoftmaxState& state, float logit) {
  if (logit > state.largest) {
    state.sum = state.sum * expf(state.largest - logit) + 1.0F;
    state.largest = logit;
  } else {
    state.sum += expf(logit - state.largest);
  }
}

SFTRUN_HOST_DEVICE SoftmaxState merge(const SoftmaxState& a, const SoftmaxState& b) {
  SoftmaxState both;
  both.largest = a.largest > b.largest ? a.largest : b.largest;
  both.sum = a.sum * expf(a.largest - both.largest) + b.sum * expf(b.largest - both.largest);
  return both;
}

struct AdamWElement {
  float param, exp_avg, exp_avg_sq;
};

/// torch.optim.AdamW's single-tensor order of operations, as in adamw_cpu.inl.
SFTRUN_HOST_DEVICE AdamWElement adamw_element(AdamWElement e, float grad, const AdamWParams& a) {
  const float step_size = a.learning_rate / a.bias_correction1,
              decay = 1.0F - a.learning_rate * a.weight_decay;
  const float g = grad * a.grad_scale;
  e.exp_avg = e.exp_avg + a.one_minus_beta1 * (g - e.exp_avg);
  e.exp_avg_sq = e.exp_avg_sq * a.beta2 + a.one_minus_beta2 * g * g;
  const float denominator = sqrtf(e.exp_avg_sq) / a.sqrt_bias_correction2 + a.epsilon;
  e.param = e.param * decay - step_size * (e.exp_avg / denominator);
  return e;
}

/// Separately rounded product and sum, which nvcc must not fuse.
SFTRUN_HOST_DEVICE float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__) || defined(SFTRUN_CUDA_EMULATOR)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
SFTRUN_HOST_DEVICE float rounded_sum(float a, float b) {
#if defined(__CUDA_ARCH__) || defined(SFTRUN_CUDA_EMULATOR)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

/// bitsandbytes' order of operations, as in adamw_8bit_cpu.inl, on dequantised moments.
SFTRUN_HOST_DEVICE AdamWElement adamw_8bit_element(AdamWElement e, float grad,
                                                   const AdamW8bitParams& a) {
  const float g = rounded_product(grad, a.grad_scale);
  e.exp_avg = fmaf(a.one_minus_beta1, g, rounded_product(e.exp_avg, a.beta1));
  e.exp_avg_sq =
      fmaf(rounded_product(a.one_minus_beta2, g), g, rounded_product(e.exp_avg_sq, a.beta2));
  const float denominator = rounded_sum(sqrtf(e.exp_avg_sq) / a.sqrt_bias_correction2, a.epsilon);
  e.param = rounded_sum(rounded_product(e.param, a.decay),
                        rounded_product(a.step_size, e.exp_avg) / denominator);
  return e;
}

/// Index of the DynamicMap step nearest to a value; `inverse` is 1 / absmax of its block.
SFTRUN_HOST_DEVICE int32_t state_place(float value, float inverse) {
  const float x = rounded_product(value, inverse);
  if (!(x >= -1.0F)) return 0;  // NaN, too
  const float half = rounded_product(rounded_sum(fminf(x, 1.0F), 1.0F), 0.5F);
  return static_cast<int32_t>(rounded_sum(rounded_product(half, kStateSteps - 1), 0.5F));
}

/// Code of a step: the number of the 255 bounds in DynamicMap::tree that are <= it. In the first
/// levels lanes read few distinct addresses, and in the last one 64 words.
SFTRUN_HOST_DEVICE uint8_t state_code(const uint16_t* tree, int32_t place) {
  constexpr int kLevels = 8, kLevelStep = 32, kLastLevel = 256;
  int code = 0;
  for (int level = 0; level < kLevels; ++level) {
    const int first = level + 1 < kLevels ? kLevelStep * level : kLastLevel;
    code = 2 * code + (place >= static_cast<int32_t>(tree[first + code]) ? 1 : 0);
  }
  return static_cast<uint8_t>(code);
}

}  // namespace sftrun::kernels::cuda
