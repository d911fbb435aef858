#include "../../src/layers/attention/heads_pass.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace sftrun::layers {
namespace {

constexpr int64_t kTokens = 5, kHeads = 3, kHeadDim = 8;

/// Attention with RoPE, and a norm of queries over `norm_width` columns; 0: none.
struct Heads {
  Attention attention;
  BatchContext batch;

  explicit Heads(int64_t norm_width) {
    at::manual_seed(7);
    attention.shape.num_heads = kHeads, attention.shape.head_dim = kHeadDim;
    if (norm_width > 0) attention.q_norm.weight = at::rand({norm_width}) + 0.5;
    const at::Tensor angles = at::rand({kTokens, kHeadDim / 2}) * 6;
    batch.ropes = {{at::cos(angles), at::sin(angles)}};
  }
  HeadsPass pass() const { return {attention, batch}; }
  RawHeads queries(const at::Tensor& x) const { return {x, &attention.q_norm}; }
};

at::Tensor random_heads() {
  return at::randn({kTokens, kHeads * kHeadDim});
}

// A norm over each head, over all heads of a token, and none, where RoPE changes the saved tensor.
TEST(HeadsPass, ComputesTheSameAgain) {
  for (const int64_t norm_width : {kHeadDim, kHeads * kHeadDim, int64_t{0}}) {
    const Heads heads(norm_width);
    const RawHeads kept = heads.queries(random_heads());
    const at::Tensor raw = kept.x.clone(), y = heads.pass().forward({kept})[0].y;
    EXPECT_TRUE(at::equal(heads.pass().forward_again({kept})[0], y)) << norm_width;
    EXPECT_FALSE(at::allclose(y, raw)) << norm_width;
    EXPECT_EQ(at::equal(kept.x, raw), norm_width > 0);
  }
}

TEST(HeadsPass, GradientIsThatOfFiniteDifferences) {
  for (const int64_t norm_width : {kHeadDim, kHeads * kHeadDim, int64_t{0}}) {
    const Heads heads(norm_width);
    const at::Tensor x = random_heads(), direction = random_heads() * 1e-2, dy = random_heads();
    const auto loss = [&](const at::Tensor& at) {
      return (heads.pass().forward({heads.queries(at.clone())})[0].y * dy).sum().item<double>();
    };
    const RawHeads kept = heads.queries(x.clone());
    const at::Tensor rstd = heads.pass().forward({kept})[0].rstd;
    const at::Tensor dx = heads.pass().backward({kept}, {dy.clone()}, {rstd})[0];
    const double expected = (loss(x + direction) - loss(x - direction)) / 2;
    EXPECT_NEAR((dx * direction).sum().item<double>(), expected, 1e-3) << norm_width;
  }
}

}  // namespace
}  // namespace sftrun::layers
