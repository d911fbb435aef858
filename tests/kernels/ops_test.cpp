#include "sftrun/kernels/ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <string_view>

#include "sftrun/kernels/cpu_table.h"
#include "support/batches.h"
#include "support/matmul.h"
#include "support/tensors.h"

namespace sftrun::kernels {
namespace {

using test::batch_of;
using test::close;
using test::matmul_nt;
using test::normal;
using test::tolerance_for;

struct AttentionCase {
  int64_t heads, kv_heads, head_dim;
  std::vector<int32_t> lengths;
  at::ScalarType dtype;
  int64_t window = 0;
  double softcap = 0;
};

class Attention : public ::testing::TestWithParam<AttentionCase> {};

// Against softmax(q k^T) v written out in fp64, document by document.
TEST_P(Attention, ForwardAndBackward) {
  const AttentionCase& c = GetParam();
  const BatchMetadata batch = batch_of(c.lengths, c.head_dim);
  const AttentionShape shape{c.heads,    c.kv_heads,
                             c.head_dim, 1 / std::sqrt(static_cast<double>(c.head_dim)),
                             c.window,   c.softcap};
  const int64_t tokens = batch.cu_seqlens.back();
  const at::Tensor q = normal({tokens, c.heads * c.head_dim}, 1, c.dtype),
                   k = normal({tokens, c.kv_heads * c.head_dim}, 2, c.dtype);
  const at::Tensor v = normal({tokens, c.kv_heads * c.head_dim}, 3, c.dtype),
                   d_out = normal(q.sizes(), 4, c.dtype);
  const AttentionOutput output = attention_forward(q, k, v, batch, shape);
  const AttentionGrads grads = attention_backward(d_out, q, k, v, output, batch, shape);

  const auto leaf = [](const at::Tensor& t) { return t.to(at::kDouble).detach().requires_grad_(); };
  const at::Tensor q64 = leaf(q), k64 = leaf(k), v64 = leaf(v);
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    const int64_t begin = batch.cu_seqlens[i], length = batch.cu_seqlens[i + 1] - begin;
    const auto heads_of = [&](const at::Tensor& t, int64_t heads) {
      return t.narrow(0, begin, length)
          .view({length, heads, c.head_dim})
          .transpose(0, 1)
          .repeat_interleave(c.heads / heads, 0);
    };
    const at::Tensor distance = at::arange(length).unsqueeze(1) - at::arange(length);
    at::Tensor masked = distance < 0;
    if (c.window > 0) masked = masked.logical_or(distance >= c.window);
    at::Tensor scores =
        at::matmul(heads_of(q64, c.heads), heads_of(k64, c.kv_heads).transpose(1, 2)) * shape.scale;
    if (c.softcap > 0) scores = at::tanh(scores / c.softcap) * c.softcap;
    scores = scores.masked_fill(masked, -INFINITY);
    outputs.push_back(at::matmul(at::softmax(scores, -1), heads_of(v64, c.kv_heads))
                          .transpose(0, 1)
                          .reshape({length, -1}));
  }
  const at::Tensor expected = at::cat(outputs);
  torch::autograd::backward({expected}, {d_out.to(at::kDouble)});
  const double tolerance = tolerance_for(c.dtype);
  EXPECT_TRUE(close(output.out, expected, tolerance));
  EXPECT_TRUE(close(grads.dq, q64.grad(), tolerance));
  EXPECT_TRUE(close(grads.dk, k64.grad(), tolerance));
  EXPECT_TRUE(close(grads.dv, v64.grad(), tolerance));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    ::testing::Values(AttentionCase{9, 3, 64, {1, 63, 64, 65, 200}, at::kFloat},
                      AttentionCase{2, 1, 16, {5, 130}, at::kFloat},
                      AttentionCase{3, 3, 128, {77}, at::kFloat},
                      AttentionCase{4, 2, 8, {1, 2, 33}, at::kFloat},
                      AttentionCase{3, 1, 20, {64, 9}, at::kFloat},
                      AttentionCase{9, 3, 64, {1, 64, 150}, at::kBFloat16},
                      AttentionCase{4, 2, 8, {17, 40}, at::kBFloat16},
                      AttentionCase{1, 1, 256, {70}, at::kFloat},
                      AttentionCase{4, 2, 32, {1, 64, 200}, at::kFloat, 2},
                      AttentionCase{4, 2, 32, {5, 130, 200}, at::kFloat, 63},
                      AttentionCase{4, 2, 32, {65, 300}, at::kFloat, 64},
                      AttentionCase{4, 2, 32, {65, 300}, at::kFloat, 65},
                      AttentionCase{2, 1, 16, {300}, at::kFloat, 129},
                      AttentionCase{2, 1, 16, {40, 300}, at::kBFloat16, 100},
                      AttentionCase{4, 2, 32, {3, 150}, at::kFloat, 0, 1.5},
                      AttentionCase{4, 2, 32, {3, 150}, at::kFloat, 70, 1.5},
                      AttentionCase{4, 2, 32, {3, 150}, at::kBFloat16, 70, 1.5},
                      AttentionCase{4, 2, 8, {17, 40}, at::kFloat, 9},
                      AttentionCase{4, 2, 8, {17, 40}, at::kFloat, 0, 2.0},
                      AttentionCase{4, 2, 8, {17, 40}, at::kBFloat16, 9, 2.0}),
    [](const auto& param_info) {
      const AttentionCase& c = param_info.param;
      return std::to_string(c.heads) + "_" + std::to_string(c.kv_heads) + "_heads_of_" +
             std::to_string(c.head_dim) + "_" + c10::toString(c.dtype) + "_window_" +
             std::to_string(c.window) + (c.softcap > 0 ? "_capped" : "");
    });

TEST(Attention, DoesNotDependOnThreads) {
  const BatchMetadata batch = batch_of({100, 31}, 64);
  const AttentionShape shape{6, 2, 64, 0.125};
  const at::Tensor q = normal({131, 384}, 1), k = normal({131, 128}, 2), v = normal({131, 128}, 3);
  const int threads = at::get_num_threads();
  const AttentionOutput many = attention_forward(q, k, v, batch, shape);
  const AttentionGrads many_grads = attention_backward(q, q, k, v, many, batch, shape);
  at::set_num_threads(1);
  const AttentionOutput one = attention_forward(q, k, v, batch, shape);
  const AttentionGrads one_grads = attention_backward(q, q, k, v, one, batch, shape);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(many.out, one.out));
  EXPECT_TRUE(at::equal(many_grads.dk, one_grads.dk));
  EXPECT_TRUE(at::equal(many_grads.dq, one_grads.dq));
}

at::Tensor wide(const at::Tensor& tensor) {
  return tensor.to(at::kDouble);
}

/// One head of one sequence, in fp64.   @param keys, values [length, head_dim]
at::Tensor attended(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                    const AttentionShape& shape, const at::Tensor& sink) {
  const int64_t first = shape.window > 0 ? std::max<int64_t>(0, keys.size(0) - shape.window) : 0;
  at::Tensor scores = at::mv(wide(keys.slice(0, first)), wide(query)) * shape.scale;
  if (shape.softcap > 0) scores = at::tanh(scores / shape.softcap) * shape.softcap;
  if (sink.defined()) scores = at::cat({scores, wide(sink).view({1})});
  const at::Tensor weights = at::softmax(scores, 0).slice(0, 0, keys.size(0) - first);
  return at::mv(wide(values.slice(0, first)).t(), weights);
}

TEST(CachedAttention, AgreesWithFp64) {
  const std::vector<int64_t> lengths = {1, 7, 33, 200};
  int64_t seed = 0;
  for (const auto& [kv_heads, group, depth] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {1, 1, 8}, {3, 3, 64}, {2, 1, 80}, {2, 8, 20}, {1, 4, 256}}) {
    for (const int64_t window : {0, 5}) {
      for (const double softcap : {0.0, 3.0}) {
        for (const bool has_sinks : {false, true}) {
          for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
            AttentionShape shape;
            shape.num_heads = kv_heads * group, shape.num_kv_heads = kv_heads;
            shape.head_dim = depth, shape.window = window, shape.softcap = softcap;
            shape.scale = 0.5;
            const at::Tensor q = normal({4, shape.num_heads * depth}, ++seed, dtype),
                             keys = normal({6, kv_heads, 210, depth}, ++seed, dtype),
                             values = normal({6, kv_heads, 210, depth}, ++seed, dtype),
                             sinks = has_sinks ? normal({shape.num_heads}, ++seed) : at::Tensor();
            const at::Tensor out = cached_attention(q, keys, values, lengths, shape, sinks);
            ASSERT_EQ(out.scalar_type(), dtype);
            for (int64_t row = 0; row < 4; ++row) {
              for (int64_t head = 0; head < shape.num_heads; ++head) {
                const int64_t length = lengths[static_cast<size_t>(row)];
                const at::Tensor expected = attended(q[row].narrow(0, head * depth, depth),
                                                     keys[row][head / group].narrow(0, 0, length),
                                                     values[row][head / group].narrow(0, 0, length),
                                                     shape, has_sinks ? sinks[head] : sinks);
                EXPECT_TRUE(close(out[row].narrow(0, head * depth, depth), expected,
                                  dtype == at::kFloat ? 1e-5 : 6e-3));
              }
            }
          }
        }
      }
    }
  }
}

TEST(CachedAttention, RefusesSequencesBeyondTheCache) {
  AttentionShape shape;
  shape.num_heads = shape.num_kv_heads = 1, shape.head_dim = 8, shape.scale = 1;
  const at::Tensor q = normal({1, 8}, 1), cache = normal({1, 1, 4, 8}, 2);
  for (const int64_t length : {0, 5})
    EXPECT_THROW(cached_attention(q, cache, cache, std::vector<int64_t>{length}, shape),
                 c10::Error);
  EXPECT_THROW(cached_attention(q, cache.to(at::kBFloat16), cache, std::vector<int64_t>{4}, shape),
               c10::Error);
}

// rows, columns, depth, rank of a second product (0: none), dtype
using MatmulCase = std::tuple<int64_t, int64_t, int64_t, int64_t, at::ScalarType>;
class Matmul : public ::testing::TestWithParam<MatmulCase> {};

// Own kernels and LibTorch's: few rows, odd sizes, rows that overlap blocks, wide panels, pieces of
// the depth, operands whose rows lie apart.
TEST_P(Matmul, SumsOfProductsAgreeWithFp64) {
  const auto [rows, columns, depth, rank, dtype] = GetParam();
  const auto random = [&, type = dtype](std::vector<int64_t> shape, uint64_t seed) {
    return normal(shape, seed).to(type);
  };
  // Of inputs rounded to bf16, sums in fp32 lie within the rounding of the result.
  const double tolerance = dtype == at::kFloat ? 2e-5 : 6e-3;
  const at::Tensor x = random({rows, depth + 6}, 1).narrow(1, 2, depth),
                   w = random({columns, depth}, 2), v = random({depth, columns}, 3),
                   residual = random({rows, columns}, 4), bias = random({columns}, 5);
  EXPECT_TRUE(close(matmul_nt(x, w), at::mm(wide(x), wide(w).t()), tolerance));
  EXPECT_TRUE(close(matmul_sum({{x, v, false}}), at::mm(wide(x), wide(v)), tolerance));
  EXPECT_TRUE(close(matmul_sum({{x, w, true}}, residual, bias),
                    at::mm(wide(x), wide(w).t()) + wide(residual) + wide(bias), 2 * tolerance));
  if (rank == 0) return;
  const at::Tensor low = random({rows, rank}, 6), a = random({rank, columns}, 7);
  const at::Tensor expected =
      at::mm(wide(x), wide(w).t()) + at::mm(wide(low), wide(a)) + wide(residual);
  const std::vector<Product> terms = {{x, w, true}, {low, a, false}};
  const at::Tensor sum = matmul_sum(terms, residual);
  EXPECT_TRUE(close(sum, expected, 2 * tolerance));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(matmul_sum(terms, residual), sum));
  at::set_num_threads(threads);
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, Matmul,
    ::testing::Values(
        MatmulCase{1, 1, 1, 1, at::kFloat}, MatmulCase{8, 64, 16, 0, at::kFloat},
        MatmulCase{33, 129, 300, 4, at::kFloat}, MatmulCase{64, 64, 64, 8, at::kFloat},
        MatmulCase{65, 17, 31, 3, at::kFloat}, MatmulCase{127, 200, 1111, 16, at::kFloat},
        MatmulCase{1500, 8, 96, 2, at::kFloat}, MatmulCase{40, 64, 64, 8, at::kBFloat16},
        MatmulCase{64, 40, 64, 8, at::kBFloat16}, MatmulCase{100, 129, 302, 4, at::kBFloat16},
        MatmulCase{100, 64, 31, 1, at::kBFloat16}, MatmulCase{191, 70, 2500, 16, at::kBFloat16},
        MatmulCase{1500, 24, 96, 2, at::kBFloat16}, MatmulCase{1100, 300, 1500, 8, at::kFloat},
        MatmulCase{2, 130, 1025, 2, at::kBFloat16}, MatmulCase{5, 1, 33, 2, at::kBFloat16},
        MatmulCase{16, 129, 2100, 4, at::kBFloat16}, MatmulCase{17, 300, 576, 8, at::kBFloat16},
        MatmulCase{63, 33, 1537, 8, at::kBFloat16}, MatmulCase{15, 130, 1025, 2, at::kFloat},
        MatmulCase{24, 31, 2100, 2, at::kFloat}, MatmulCase{63, 300, 577, 8, at::kFloat},
        MatmulCase{1100, 300, 4100, 8, at::kBFloat16}));

// Whatever multiplies: sums of rows and columns of very different sizes, no worse than those of
// LibTorch's product in fp32.
TEST(Matmul, IsAsExactAsFp32) {
  for (const auto& [count, depth] : std::vector<std::pair<int64_t, int64_t>>{
           {150, 100}, {150, 576}, {150, 3000}, {16, 3000}, {40, 100}, {40, 3000}}) {
    const at::Tensor rows = at::exp(normal({count, 1}, 3) * 8),
                     columns = at::exp(normal({70, 1}, 4));
    const at::Tensor x = normal({count, depth}, 1) * rows, w = normal({70, depth}, 2) * columns;
    const at::Tensor expected = at::mm(wide(x), wide(w).t()),
                     size = at::mm(wide(x).abs(), wide(w).abs().t());
    const auto error_of = [&](const at::Tensor& actual) {
      return ((wide(actual) - expected) / size).square().mean().sqrt().item<double>();
    };
    // Half a unit in the last place of fp32: MKL's own are between 7e-9 and 2.8e-8 of the summands'
    // size, by processor.
    constexpr double kHalfUnit = 3e-8;
    EXPECT_LT(error_of(matmul_nt(x, w)), std::max(kHalfUnit, 2.5 * error_of(at::mm(x, w.t()))))
        << count << " x " << depth;
  }
}

TEST(Matmul, NaNStaysNaN) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t rows : {4, 16, 40, 70}) {
        at::Tensor x = at::ones({rows, 64}, dtype);
        x[3][5] = value;
        const at::Tensor sums = matmul_nt(x, at::ones({33, 64}, dtype));
        EXPECT_FALSE(sums[3].isfinite().any().item<bool>());
        EXPECT_TRUE(sums.slice(0, 4).eq(64).all().item<bool>());
      }
    }
  }
}

TEST(Matmul, TransposedProductsAddUp) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t rows : {1, 33, 600}) {
      for (const int64_t columns : {1, 8, 33, 100}) {
        for (const int64_t depth : {3, 16, 130}) {
          const at::Tensor g = normal({rows, columns}, 3).to(dtype),
                           x = normal({rows, depth + 1}, 1).to(dtype).narrow(1, 0, depth);
          at::Tensor out = normal({columns, depth}, 8);
          const at::Tensor expected = wide(out) + at::mm(wide(g).t(), wide(x));
          add_matmul_tn_(out, g, x);
          EXPECT_TRUE(close(out, expected, dtype == at::kFloat ? 2e-5 : 6e-3));
        }
      }
    }
  }
}

// The depth is the tokens here: more of them than a panel holds, one, none, and an odd number.
TEST(Matmul, TransposedProductsOfAnyDepth) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t tokens : {0, 1, 255, 4803}) {
      const at::Tensor g = normal({tokens, 80}, 3).to(dtype), x = normal({tokens, 70}, 4).to(dtype),
                       before = normal({80, 70}, 5);
      at::Tensor out = before.clone(), of_one_thread = before.clone();
      add_matmul_tn_(out, g, x);
      EXPECT_TRUE(close(out, wide(before) + at::mm(wide(g).t(), wide(x)),
                        dtype == at::kFloat ? 2e-5 : 6e-3))
          << tokens;
      if (std::string_view(cpu_kernels().isa) != "isa_avx2")
        continue;  // oneDNN may divide the depth
      const int threads = at::get_num_threads();
      at::set_num_threads(1);
      add_matmul_tn_(of_one_thread, g, x);
      at::set_num_threads(threads);
      EXPECT_TRUE(at::equal(of_one_thread, out)) << tokens;
    }
  }
}

TEST(Matmul, OfNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto zeros = [&](int64_t rows, int64_t columns) {
      return at::zeros({rows, columns}, at::TensorOptions(dtype));
    };
    EXPECT_EQ(matmul_nt(zeros(0, 32), zeros(16, 32)).sizes(), at::IntArrayRef({0, 16}));
    EXPECT_EQ(matmul_nt(zeros(70, 32), zeros(0, 32)).sizes(), at::IntArrayRef({70, 0}));
    const at::Tensor of_no_depth = matmul_nt(zeros(70, 0), zeros(16, 0));
    EXPECT_EQ(of_no_depth.sizes(), at::IntArrayRef({70, 16}));
    EXPECT_TRUE(of_no_depth.eq(0).all().item<bool>());
  }
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  at::Tensor out = at::zeros({40, 50});
  const at::Tensor g = at::ones({8, 40}), x = at::ones({8, 50});
  EXPECT_THROW(add_matmul_tn_(out, g, at::ones({9, 50})), c10::Error);
  EXPECT_THROW(add_matmul_tn_(out, g, x.to(at::kBFloat16)), c10::Error);
  EXPECT_THROW(add_matmul_tn_(out, x, g), c10::Error);
  at::Tensor in_bf16 = out.to(at::kBFloat16);
  EXPECT_THROW(add_matmul_tn_(in_bf16, g, x), c10::Error);
}

TEST(Dropout, KeepsTheMeanAndItsOwnMask) {
  BatchMetadata batch = batch_of({64}, 8);
  batch.dropout_seed = 7;
  const at::Tensor ones = at::ones({64, 1000});
  const at::Tensor first = dropout(ones, batch, 0.1, 3);
  EXPECT_NEAR(first.mean().item<double>(), 1.0, 0.01);
  EXPECT_NEAR((first == 0).to(at::kFloat).mean().item<double>(), 0.1, 0.005);
  EXPECT_TRUE(at::equal(first, dropout(ones, batch, 0.1, 3)));
  EXPECT_FALSE(at::equal(first, dropout(ones, batch, 0.1, 4)));
  batch.step = 1;
  EXPECT_FALSE(at::equal(first, dropout(ones, batch, 0.1, 3)));
}

}  // namespace
}  // namespace sftrun::kernels
