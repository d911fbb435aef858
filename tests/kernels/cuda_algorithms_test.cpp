#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "../../src/kernels/cuda/algorithms.h"
#include "sftrun/core/rng.h"
#include "support/adamw_params.h"
#include "support/tensors.h"

// What the CUDA kernels do to one element, on the host, against the CPU kernels.
namespace sftrun::kernels {
namespace {

std::vector<float> values(int64_t n, uint64_t seed) {
  const at::Tensor x = test::normal({n}, seed);
  return {x.data_ptr<float>(), x.data_ptr<float>() + n};
}

TEST(CudaAlgorithms, DropoutMaskIsTheCpusBitForBit) {
  for (const int64_t channels : {1, 7, 8, 9, 513, 1100}) {
    const std::vector<TokenKey> tokens = {{0, 0}, {3, 17}, {70000, 4095}};
    const DropoutParams params{
        .seed = 0x123456789abcdef0ULL, .step = 41, .module = 9, .threshold = 20000, .scale = 1.25F};
    const std::vector<float> x(tokens.size() * static_cast<size_t>(channels), 1.0F);
    std::vector<float> expected(x.size()), y(x.size(), -1.0F);
    cpu_kernels().f32.dropout(x.data(), expected.data(), tokens.data(),
                              static_cast<int64_t>(tokens.size()), channels, params);
    const int64_t num_blocks = (channels + 7) / 8;
    for (size_t row = 0; row < tokens.size(); ++row) {
      for (int64_t block = 0; block < num_blocks; ++block) {
        const cuda::DropoutBits bits =
            cuda::dropout_bits(params, tokens[row], static_cast<uint32_t>(block));
        for (int lane = 0; lane < 8 && lane * num_blocks + block < channels; ++lane) {
          y[row * static_cast<size_t>(channels) + static_cast<size_t>(lane * num_blocks + block)] =
              bits.lane(lane) >= params.threshold ? params.scale : 0.0F;
        }
      }
    }
    EXPECT_EQ(y, expected) << channels << " channels";
  }
}

TEST(CudaAlgorithms, GatesAndTheirGradients) {
  constexpr int64_t kN = 300;
  const auto gate = values(kN, 1), up = values(kN, 2), dh = values(kN, 3);
  for (const Gating gating : {Gating(Activation::kSilu), Gating(Activation::kGeluTanh),
                              Gating(Activation::kClampedSwiglu, 1.7F, 0.8F)}) {
    std::vector<float> h(kN), dgate = gate, dup = up;
    cpu_kernels().f32.gated_forward(gating, gate.data(), up.data(), h.data(), kN);
    cpu_kernels().f32.gated_backward(gating, dh.data(), dgate.data(), dup.data(), kN);
    for (size_t i = 0; i < kN; ++i) {
      const cuda::Pair gradient = cuda::gated_gradient(gating, dh[i], gate[i], up[i]);
      EXPECT_NEAR(cuda::gated(gating, gate[i], up[i]), h[i], 2e-6);
      EXPECT_NEAR(gradient.first, dgate[i], 4e-6);
      EXPECT_NEAR(gradient.second, dup[i], 4e-6);
    }
    EXPECT_TRUE(std::isnan(cuda::gated(gating, std::nanf(""), 1)));
    EXPECT_TRUE(std::isnan(cuda::gated(gating, 1, std::nanf(""))));
  }
}

TEST(CudaAlgorithms, CappedLogitsAndTheirSlope) {
  constexpr int64_t kVocab = 40;
  constexpr float kCap = 3;
  const auto logits = values(kVocab, 7);
  std::vector<float> gradient = logits;
  const int32_t label = 5;
  float loss = 0;
  cpu_kernels().f32.cross_entropy(gradient.data(), &label, &loss, 1, kVocab, kCap, 1.0F, nullptr);
  cuda::SoftmaxState state;
  for (const float logit : logits) cuda::add_logit(state, cuda::capped(logit, kCap));
  for (size_t i = 0; i < kVocab; ++i) {
    const float value = cuda::capped(logits[i], kCap);
    const float expected = (std::exp(value - state.largest) / state.sum - (i == 5 ? 1.0F : 0.0F)) *
                           cuda::cap_slope(value, kCap);
    EXPECT_NEAR(gradient[i], expected, 2e-6);
  }
  EXPECT_NEAR(loss, state.largest + std::log(state.sum) - cuda::capped(logits[5], kCap), 2e-6);
}

TEST(CudaAlgorithms, Rotation) {
  constexpr int64_t kHalf = 16;
  const auto angles = values(kHalf, 4), x = values(2 * kHalf, 5);
  std::vector<float> cos(kHalf), sin(kHalf), y = x;
  for (size_t i = 0; i < kHalf; ++i) cos[i] = std::cos(angles[i]), sin[i] = std::sin(angles[i]);
  cpu_kernels().f32.rope(y.data(), cos.data(), sin.data(), 1, 1, 2 * kHalf, 2 * kHalf, -1.0F);
  for (size_t i = 0; i < kHalf; ++i) {
    const cuda::Pair rotated = cuda::rotate(x[i], x[i + kHalf], cos[i], -sin[i]);
    EXPECT_NEAR(rotated.first, y[i], 1e-6);
    EXPECT_NEAR(rotated.second, y[i + kHalf], 1e-6);
  }
}

TEST(CudaAlgorithms, SoftmaxInPiecesGivesTheLoss) {
  constexpr int64_t kVocab = 5000, kThreads = 256;
  std::vector<float> logits = values(kVocab, 6);
  for (float& logit : logits) logit *= 5.0F;
  const int32_t label = 123;
  float expected = 0;
  cpu_kernels().f32.cross_entropy_loss(logits.data(), &label, &expected, 1, kVocab, 0.0F);
  cuda::SoftmaxState total;  // threads without logits merge as well
  for (size_t thread = 0; thread < kThreads; ++thread) {
    cuda::SoftmaxState state;
    for (size_t i = thread; i < kVocab; i += kThreads) cuda::add_logit(state, logits[i]);
    total = cuda::merge(cuda::merge(total, state), cuda::SoftmaxState{});
  }
  EXPECT_NEAR(total.largest + std::log(total.sum) - logits[label], expected, 1e-5);
  EXPECT_EQ(total.largest, *std::max_element(logits.begin(), logits.end()));
}

TEST(CudaAlgorithms, SoftmaxCarriesNan) {
  cuda::SoftmaxState state;
  for (const float logit : {1.0F, std::nanf(""), 2.0F}) cuda::add_logit(state, logit);
  EXPECT_TRUE(std::isnan(cuda::merge(state, cuda::SoftmaxState{}).sum));
}

TEST(CudaAlgorithms, AdamW) {
  constexpr int64_t kN = 100;
  const AdamWParams& params = kAdamWStep;
  const auto grad = values(kN, 7), param = values(kN, 8), m = values(kN, 9);
  std::vector<float> v = values(kN, 10);
  for (float& value : v) value *= value;
  std::vector<float> p2 = param, m2 = m, v2 = v;
  cpu_kernels().adamw(p2.data(), grad.data(), m2.data(), v2.data(), nullptr, kN, params);
  for (size_t i = 0; i < kN; ++i) {
    const cuda::AdamWElement e = cuda::adamw_element({param[i], m[i], v[i]}, grad[i], params);
    EXPECT_NEAR(e.param, p2[i], 2e-6);
    EXPECT_NEAR(e.exp_avg, m2[i], 1e-6);
    EXPECT_NEAR(e.exp_avg_sq, v2[i], 1e-6 * (1 + v2[i]));
  }
}

}  // namespace
}  // namespace sftrun::kernels
