#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <utility>

#include "sftrun/kernels/ops.h"
#include "support.h"
#include "support/tensors.h"

/// Products of adapters, beside fp64: of shapes for which our kernels serve, and of others.
namespace sftrun::kernels {
namespace {

using test::close;
using test::kCard;
using test::normal;

struct Shape {
  int64_t rows, columns, rank;
};
class GpuAdapters : public testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor on_card(at::IntArrayRef shape, uint64_t seed) const {
    return normal(shape, seed, GetParam()).to(kCard);
  }
  double tolerance() const {
    return GetParam() == at::kFloat ? 2e-5 : GetParam() == at::kHalf ? 1e-3 : 6e-3;
  }
};
INSTANTIATE_TEST_SUITE_P(Types, GpuAdapters, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

at::Tensor exact(const at::Tensor& x) {
  return x.cpu().to(at::kDouble);
}

TEST_P(GpuAdapters, AddedToAResultAndABase) {
  constexpr Shape kSums[] = {{5, 64, 16}, {300, 136, 48}, {33, 40, 8}, {40, 72, 80}, {40, 60, 16}};
  for (const Shape& shape : kSums) {
    SCOPED_TRACE(testing::Message() << shape.rows << ", " << shape.columns << ", " << shape.rank);
    for (const bool has_base : {false, true}) {
      const at::Tensor y = on_card({shape.rows, shape.columns + 8}, 1).narrow(1, 0, shape.columns),
                       base = has_base ? on_card({shape.rows, shape.columns}, 2) : at::Tensor(),
                       low = on_card({shape.rows, shape.rank}, 3);
      const at::Tensor sum = has_base ? exact(y) + exact(base) : exact(y);
      for (const bool is_transposed : {false, true}) {
        const at::Tensor factor = is_transposed ? on_card({shape.columns, shape.rank}, 4).t()
                                                : on_card({shape.rank, shape.columns}, 4);
        const at::Tensor added = at::empty_like(y).copy_(y);
        add_low_rank_(added, low, factor, base);
        // LibTorch's operators round y after the base, too.
        const bool is_ours = shape.rank <= 64 && shape.columns % 8 == 0;
        EXPECT_TRUE(close(added.cpu(), sum + at::mm(exact(low), exact(factor)),
                          is_ours ? tolerance() : 2 * tolerance()));
      }
    }
  }
}

TEST_P(GpuAdapters, RefusesSummandsThatDoNotFit) {
  const at::Tensor y = on_card({6, 16}, 1), low = on_card({6, 8}, 2), factor = on_card({8, 16}, 3);
  EXPECT_THROW(add_low_rank_(y, on_card({5, 8}, 2), factor), c10::Error);
  EXPECT_THROW(add_low_rank_(y, low, on_card({8, 15}, 3)), c10::Error);
  EXPECT_THROW(add_low_rank_(y, low, factor, on_card({6, 15}, 4)), c10::Error);
  EXPECT_THROW(add_low_rank_(y, low, factor, y.to(at::kDouble)), c10::Error);
  EXPECT_THROW(add_low_rank_(y, low.cpu(), factor), c10::Error);
}

/// So many tokens, and so few columns, that the tokens are divided among blocks: on a card of few
/// multiprocessors those of the first shape, on large ones all.
TEST_P(GpuAdapters, GradientsOfManyTokens) {
  constexpr int64_t kTokens = 3100, kIn = 40, kRank = 8;
  for (const int64_t columns : {24, 640}) {
    const at::Tensor x = on_card({kTokens, kIn}, 1), dy = on_card({kTokens, columns}, 2),
                     low = on_card({kTokens, kRank}, 3), d_low = on_card({kTokens, kRank}, 4),
                     arrivals = at::zeros({16}, dy.options().dtype(at::kInt));
    const auto sums = [&](const at::Tensor& counters) {
      const at::Tensor of_a = at::ones({kRank, kIn}, dy.options().dtype(at::kFloat)),
                       of_b = at::ones({columns, kRank}, of_a.options());
      add_adapter_grads_({{of_b, dy, low, 2}, {of_a, d_low, x, 0.5}}, counters);
      return std::pair(of_a.cpu(), of_b.cpu());
    };
    const auto [of_a, of_b] = sums(arrivals);
    const auto undivided = sums({});
    EXPECT_TRUE(close(of_a, 0.5 * at::mm(exact(d_low).t(), exact(x)) + 1, 1e-5));
    EXPECT_TRUE(close(of_b, 2 * at::mm(exact(dy).t(), exact(low)) + 1, 1e-5));
    EXPECT_TRUE(close(of_a, undivided.first, 1e-5) && close(of_b, undivided.second, 1e-5));
    for (int repeat = 0; repeat < 4; ++repeat) {
      const auto again = sums(arrivals);
      EXPECT_TRUE(at::equal(of_a, again.first) && at::equal(of_b, again.second));
      EXPECT_EQ(arrivals.sum().item<int64_t>(), 0);
    }
    const bool is_undivided = at::equal(of_a, undivided.first) && at::equal(of_b, undivided.second);
    EXPECT_TRUE(columns > 24 || !is_undivided);
  }
}

}  // namespace
}  // namespace sftrun::kernels
