#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "sftrun/core/rng.h"
#include "sftrun/kernels/cpu_table.h"
#include "support/tensors.h"

// Every row kernel of every instruction set against plain loops in fp64.
namespace sftrun::kernels {
namespace {

using test::close;
using test::normal;

class RowKernels : public ::testing::TestWithParam<std::tuple<const char*, int64_t>> {
 protected:
  void SetUp() override {
    table_ = cpu_kernels_by_name(std::get<0>(GetParam()));
    if (table_ == nullptr) {  // a lesser processor: what it lacks it never chooses either
      ASSERT_STRNE(cpu_kernels().isa, (std::string("isa_") + std::get<0>(GetParam())).c_str());
      table_ = &cpu_kernels();
    }
    size_ = std::get<1>(GetParam());
  }
  const CpuKernels* table_ = nullptr;
  int64_t size_ = 0;
};

TEST_P(RowKernels, RmsNormForwardAndBackward) {
  constexpr int64_t kRows = 5;
  constexpr double kEps = 1e-5;
  const at::Tensor x = normal({kRows, size_}, 1), w = normal({size_}, 2),
                   dy = normal({kRows, size_}, 3);
  at::Tensor y = at::empty_like(x), rstd = at::empty({kRows}), dx = at::empty_like(x);
  const auto f = [](const at::Tensor& t) { return t.data_ptr<float>(); };
  table_->f32.rms_norm_forward(f(x), f(w), f(y), f(rstd), kRows, size_, static_cast<float>(kEps),
                               0.0F);
  table_->f32.rms_norm_backward(f(dy), f(x), f(w), f(rstd), nullptr, f(dx), kRows, size_, 0.0F);
  const at::Tensor xd = x.to(at::kDouble).requires_grad_(), wd = w.to(at::kDouble);
  const at::Tensor expected = xd * at::rsqrt(xd.pow(2).mean(-1, true) + kEps) * wd;
  EXPECT_TRUE(close(y, expected, 2e-6));
  // d/dx by the definition: s (w dy) - x s^3 / H sum(w dy x)
  const at::Tensor s = at::rsqrt(xd.detach().pow(2).mean(-1, true) + kEps),
                   g = wd * dy.to(at::kDouble);
  const at::Tensor expected_dx = s * g - xd.detach() * s.pow(3) * (g * xd.detach()).mean(-1, true);
  // With one channel the two terms cancel but for eps, and only rounding is left.
  EXPECT_TRUE(close(dx, expected_dx, size_ == 1 ? 1e-3 : 5e-6));
  at::Tensor beside = at::empty_like(x);
  table_->f32.rms_norm_backward(f(dy), f(x), f(w), f(rstd), f(y), f(beside), kRows, size_, 0.0F);
  EXPECT_TRUE(close(beside, dx.to(at::kDouble) + y.to(at::kDouble), 1e-6));
}

// Gemma's norm multiplies by 1 + weight.
TEST_P(RowKernels, RmsNormOffsetIsAddedToTheWeight) {
  constexpr int64_t kRows = 3;
  const at::Tensor x = normal({kRows, size_}, 1), w = normal({size_}, 2),
                   dy = normal({kRows, size_}, 3), shifted = w + 1;
  const auto f = [](const at::Tensor& t) { return t.data_ptr<float>(); };
  at::Tensor y[2], dx[2], rstd = at::empty({kRows});
  for (int i = 0; i < 2; ++i) {
    y[i] = at::empty_like(x), dx[i] = at::empty_like(x);
    const at::Tensor& weight = i == 0 ? w : shifted;
    const float offset = i == 0 ? 1.0F : 0.0F;
    table_->f32.rms_norm_forward(f(x), f(weight), f(y[i]), f(rstd), kRows, size_, 1e-6F, offset);
    table_->f32.rms_norm_backward(f(dy), f(x), f(weight), f(rstd), nullptr, f(dx[i]), kRows, size_,
                                  offset);
  }
  EXPECT_TRUE(close(y[0], y[1], 1e-6));
  EXPECT_LT((dx[0] - dx[1]).abs().max().item<double>(), 1e-5);
}

TEST_P(RowKernels, RopeTurnsTheFirstChannelsOfEachHead) {
  constexpr int64_t kRows = 2, kHeads = 3;
  const int64_t half = (size_ + 1) / 2, head_dim = 2 * half + 5;
  const at::Tensor x = normal({kRows, kHeads, head_dim}, 1), angle = normal({kRows, half}, 2),
                   cos = at::cos(angle), sin = at::sin(angle);
  at::Tensor y = x.clone();
  table_->f32.rope(y.data_ptr<float>(), cos.data_ptr<float>(), sin.data_ptr<float>(), kRows, kHeads,
                   head_dim, 2 * half, 1.0F);
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half), c = cos.unsqueeze(1),
                   s = sin.unsqueeze(1);
  EXPECT_TRUE(close(y.narrow(2, 0, half), a * c - b * s, 1e-6));
  EXPECT_TRUE(close(y.narrow(2, half, half), b * c + a * s, 1e-6));
  EXPECT_TRUE(at::equal(y.narrow(2, 2 * half, 5), x.narrow(2, 2 * half, 5)));
}

at::Tensor gated(const Gating& gating, const at::Tensor& gate, const at::Tensor& up) {
  if (gating.activation == Activation::kSilu) return at::silu(gate) * up;
  if (gating.activation == Activation::kGeluTanh) return at::gelu(gate, "tanh") * up;
  const at::Tensor g = gate.clamp_max(gating.limit);
  return (up.clamp(-gating.limit, gating.limit) + 1) * (g * at::sigmoid(g * gating.alpha));
}

TEST_P(RowKernels, GatesForwardAndBackward) {
  const at::Tensor gate = normal({size_}, 4) * 4, up = normal({size_}, 5), dh = normal({size_}, 6);
  for (const Gating gating : {Gating(Activation::kSilu), Gating(Activation::kGeluTanh),
                              Gating(Activation::kClampedSwiglu, 1.7F, 0.8F)}) {
    at::Tensor h = at::empty_like(gate), dgate = gate.clone(), dup = up.clone();
    table_->f32.gated_forward(gating, gate.data_ptr<float>(), up.data_ptr<float>(),
                              h.data_ptr<float>(), size_);
    table_->f32.gated_backward(gating, dh.data_ptr<float>(), dgate.data_ptr<float>(),
                               dup.data_ptr<float>(), size_);
    const at::Tensor g = gate.to(at::kDouble).requires_grad_(),
                     u = up.to(at::kDouble).requires_grad_();
    const at::Tensor expected = gated(gating, g, u);
    torch::autograd::backward({expected}, {dh.to(at::kDouble)});
    // Values near 0 have the absolute error of those around 1.
    const auto largest_difference = [](const at::Tensor& a, const at::Tensor& b) {
      return (a.to(at::kDouble) - b).abs().max().item<double>();
    };
    EXPECT_LT(largest_difference(h, expected), 1e-5);
    EXPECT_LT(largest_difference(dgate, g.grad()), 1e-5);
    EXPECT_LT(largest_difference(dup, u.grad()), 1e-5);
  }
}

// As with torch.clamp: a run that diverges is to say so.
TEST_P(RowKernels, NaNPassesGates) {
  for (const Gating gating : {Gating(Activation::kSilu), Gating(Activation::kGeluTanh),
                              Gating(Activation::kClampedSwiglu, 1.7F, 0.8F)}) {
    at::Tensor gate = at::zeros({size_}), up = at::ones({size_}), h = at::empty({size_});
    gate[0] = std::nanf("");
    up[size_ - 1] = std::nanf("");
    table_->f32.gated_forward(gating, gate.data_ptr<float>(), up.data_ptr<float>(),
                              h.data_ptr<float>(), size_);
    EXPECT_TRUE(at::equal(h.isnan(), gated(gating, gate, up).isnan()));
  }
}

// As they are, and soft-capped at 4.
TEST_P(RowKernels, CrossEntropyAndItsGradient) {
  constexpr int64_t kRows = 3;
  const at::Tensor logits = normal({kRows, size_}, 7) * 5;
  std::vector<int32_t> labels;
  for (int64_t row = 0; row < kRows; ++row)
    labels.push_back(static_cast<int32_t>(row * (size_ - 1) / kRows));
  for (const float cap : {0.0F, 4.0F}) {
    at::Tensor work = logits.clone(), losses = at::empty({kRows}), only = at::empty({kRows});
    table_->f32.cross_entropy_loss(logits.data_ptr<float>(), labels.data(), only.data_ptr<float>(),
                                   kRows, size_, cap);
    table_->f32.cross_entropy(work.data_ptr<float>(), labels.data(), losses.data_ptr<float>(),
                              kRows, size_, cap, 0.25F, nullptr);
    const at::Tensor exact = logits.to(at::kDouble).requires_grad_();
    const at::Tensor log_p = at::log_softmax(cap > 0 ? at::tanh(exact / cap) * cap : exact, -1);
    at::Tensor total = at::zeros({}, at::kDouble);
    for (int64_t row = 0; row < kRows; ++row) {
      const at::Tensor loss = -log_p[row][labels[static_cast<size_t>(row)]];
      EXPECT_NEAR(losses[row].item<double>(), loss.item<double>(), 2e-5);
      EXPECT_EQ(losses[row].item<float>(), only[row].item<float>());
      total = total + loss;
    }
    torch::autograd::backward({total * 0.25});
    EXPECT_LT((work.to(at::kDouble) - exact.grad()).abs().max().item<double>(), 1e-6);
  }
}

// The gradient of each row times its factor: powers of two, so that nothing is rounded.
TEST_P(RowKernels, CrossEntropyWithAFactorForEachRow) {
  constexpr int64_t kRows = 4;
  const at::Tensor logits = normal({kRows, size_}, 9) * 5;
  const std::vector<int32_t> labels = {0, static_cast<int32_t>(size_ - 1), -100, 0};
  const std::vector<float> factors = {2, -0.5F, 8, 0};
  at::Tensor with = logits.clone(), without = logits.clone(), losses = at::empty({kRows}),
             plain_losses = at::empty({kRows});
  table_->f32.cross_entropy(with.data_ptr<float>(), labels.data(), losses.data_ptr<float>(), kRows,
                            size_, 4.0F, 0.25F, factors.data());
  table_->f32.cross_entropy(without.data_ptr<float>(), labels.data(),
                            plain_losses.data_ptr<float>(), kRows, size_, 4.0F, 0.25F, nullptr);
  EXPECT_TRUE(at::equal(losses, plain_losses));
  EXPECT_TRUE(at::equal(with, without * at::tensor(factors).unsqueeze(1)));
}

TEST_P(RowKernels, CrossEntropyOfNotANumberIsNotANumber) {
  at::Tensor logits = normal({1, size_}, 8), losses = at::zeros({1});
  logits[0][size_ - 1] = std::nan("");
  const int32_t label = 0;
  table_->f32.cross_entropy_loss(logits.data_ptr<float>(), &label, losses.data_ptr<float>(), 1,
                                 size_, 0.0F);
  EXPECT_TRUE(std::isnan(losses[0].item<float>()));
}

TEST_P(RowKernels, DropoutIsThePublishedGenerator) {
  const TokenKey tokens[] = {{3, 0}, {3, 1}, {4, 7}};
  DropoutParams params;
  params.seed = 0x123456789abcdefULL;
  params.step = 11;
  params.module = 42;
  params.threshold = 6554;  // of 65536: 0.1
  params.scale = 65536.0F / (65536.0F - 6554.0F);
  const at::Tensor x = normal({3, size_}, 9);
  at::Tensor y = at::empty_like(x);
  table_->f32.dropout(x.data_ptr<float>(), y.data_ptr<float>(), tokens, 3, size_, params);
  const int64_t num_blocks = (size_ + 7) / 8;
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t c = 0; c < size_; ++c) {
      const auto block = static_cast<uint32_t>(c % num_blocks);
      const int64_t lane = c / num_blocks;
      const Philox4 words =
          philox4x32({block, tokens[row].position, tokens[row].document, params.module},
                     {static_cast<uint32_t>(params.seed) ^ params.step,
                      static_cast<uint32_t>(params.seed >> 32)});
      const uint32_t bits = words[static_cast<size_t>(lane / 2)] >> (lane % 2 ? 16 : 0) & 0xffffU;
      const float expected =
          bits >= params.threshold ? x[row][c].item<float>() * params.scale : 0.0F;
      ASSERT_EQ(y[row][c].item<float>(), expected) << "row " << row << " channel " << c;
    }
  }
}

TEST_P(RowKernels, RopeRotatesAndTurnsBack) {
  const int64_t head_dim = 2 * ((size_ + 1) / 2), heads = 3;
  const at::Tensor x = normal({2, heads * head_dim}, 10), angle = normal({2, head_dim / 2}, 11);
  const at::Tensor cos = at::cos(angle).contiguous(), sin = at::sin(angle).contiguous();
  at::Tensor y = x.clone();
  table_->f32.rope(y.data_ptr<float>(), cos.data_ptr<float>(), sin.data_ptr<float>(), 2, heads,
                   head_dim, head_dim, 1);
  const at::Tensor parts = x.view({2, heads, 2, head_dim / 2}).to(at::kDouble);
  const at::Tensor a = parts.select(2, 0), b = parts.select(2, 1), c = cos.unsqueeze(1),
                   s = sin.unsqueeze(1);
  const at::Tensor expected =
      at::stack({a * c - b * s, b * c + a * s}, 2).view({2, heads * head_dim});
  EXPECT_TRUE(close(y, expected, 1e-6));
  table_->f32.rope(y.data_ptr<float>(), cos.data_ptr<float>(), sin.data_ptr<float>(), 2, heads,
                   head_dim, head_dim, -1);
  EXPECT_TRUE(close(y, x, 1e-6));
}

template <typename T>
const BlockKernels<T>& blocks_of(const CpuKernels& table) {
  if constexpr (std::is_same_v<T, uint16_t>)
    return table.bf16.matmul.blocks;
  else
    return table.f32.matmul.blocks;
}

/// c = a b, then c += a b, against fp64. A row's bits do not depend on the other rows.
/// @param multiply called with rows of a, `add` and c
template <typename Multiply>
void expect_products(const at::Tensor& a, const at::Tensor& b, int64_t columns,
                     const Multiply& multiply) {
  const int64_t rows = a.size(0), width = (columns + 15) / 16 * 16;
  const at::Tensor c = at::full({rows, width}, NAN), row = at::full({1, width}, NAN),
                   expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  multiply(a, false, c);
  EXPECT_TRUE(close(c.narrow(1, 0, columns), expected, 2e-6));
  for (const int64_t r : {int64_t{0}, rows / 2, rows - 1}) {
    multiply(a.narrow(0, r, 1), false, row);
    ASSERT_TRUE(at::equal(row[0].narrow(0, 0, columns), c[r].narrow(0, 0, columns))) << r;
  }
  multiply(a, true, c);
  EXPECT_TRUE(close(c.narrow(1, 0, columns), 2 * expected, 2e-6));
}

template <typename T>
void expect_block_products(const CpuKernels& table, int64_t rows, int64_t columns, int64_t depth) {
  constexpr bool kInPairs = std::is_same_v<T, uint16_t>;
  const BlockKernels<T>& kernels = blocks_of<T>(table);
  const at::ScalarType dtype = kInPairs ? at::kBFloat16 : at::kFloat;
  const at::Tensor a = normal({rows, depth + 3}, 21, dtype).narrow(1, 1, depth),
                   b = normal({depth, columns + 5}, 22, dtype).narrow(1, 2, columns);
  const auto data = [](const at::Tensor& of) { return static_cast<const T*>(of.const_data_ptr()); };
  if (columns % 16 == 0) {
    const at::Tensor packed =
        kInPairs ? b.reshape({depth / 2, 2, columns}).transpose(1, 2).contiguous() : b.contiguous();
    expect_products(a, b, columns, [&](const at::Tensor& left, bool add, const at::Tensor& c) {
      kernels.multiply(left.size(0), columns, depth, add, data(left), left.stride(0), data(packed),
                       c.data_ptr<float>());
    });
  }
  expect_products(a, b, columns, [&](const at::Tensor& left, bool add, const at::Tensor& c) {
    kernels.multiply_few(left.size(0), columns, depth, add, data(left), left.stride(0), data(b),
                         b.stride(0), c.data_ptr<float>(), c.stride(0));
  });
  const at::Tensor transposed = at::zeros({columns, depth + 7}, b.options()).narrow(1, 3, depth);
  transposed.copy_(b.t());
  expect_products(a, b, columns, [&](const at::Tensor& left, bool add, const at::Tensor& c) {
    kernels.multiply_few_transposed(left.size(0), columns, depth, add, data(left), left.stride(0),
                                    data(transposed), transposed.stride(0), c.data_ptr<float>(),
                                    c.stride(0));
  });
}

TEST_P(RowKernels, ProductsOfBlocks) {
  if (table_->f32.matmul.blocks.multiply == nullptr) {
    ASSERT_STREQ(table_->isa, "isa_generic") << "the others have them";
    return;
  }
  for (const int64_t rows : {1, 13, 70}) {
    for (const int64_t columns : {3, 48, 290}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
      expect_block_products<float>(*table_, rows, columns, size_);
      expect_block_products<uint16_t>(*table_, rows, columns, size_ + size_ % 2);
    }
  }
}

TEST_P(RowKernels, AdamWStepByStep) {
  at::Tensor param = normal({size_}, 12), m = at::zeros({size_}), v = at::zeros({size_});
  at::Tensor p64 = param.to(at::kDouble), m64 = at::zeros({size_}, at::kDouble),
             v64 = at::zeros({size_}, at::kDouble);
  std::vector<uint16_t> copy(static_cast<size_t>(size_));
  for (int step = 1; step <= 3; ++step) {
    const at::Tensor grad = normal({size_}, 20 + static_cast<uint64_t>(step));
    const AdamWParams params{1e-2F,
                             0.9F,
                             0.999F,
                             1e-8F,
                             0.1F,
                             1 - std::pow(0.9F, static_cast<float>(step)),
                             std::sqrt(1 - std::pow(0.999F, static_cast<float>(step))),
                             0.5F,
                             0.1F,
                             0.001F};
    table_->adamw(param.data_ptr<float>(), grad.data_ptr<float>(), m.data_ptr<float>(),
                  v.data_ptr<float>(), copy.data(), size_, params);
    const at::Tensor g = grad.to(at::kDouble) * 0.5;  // torch.optim.AdamW
    p64 *= 1 - 1e-2 * 0.1;
    m64 = 0.9 * m64 + 0.1 * g;
    v64 = 0.999 * v64 + 0.001 * g * g;
    p64 -= 1e-2 / (1 - std::pow(0.9, step)) * m64 /
           (v64.sqrt() / std::sqrt(1 - std::pow(0.999, step)) + 1e-8);
  }
  EXPECT_TRUE(close(param, p64, 1e-5));
  const at::Tensor rounded = param.to(at::kBFloat16);
  EXPECT_EQ(copy[0], static_cast<const uint16_t*>(rounded.data_ptr())[0]);
}

TEST_P(RowKernels, BFloat16RoundsAsLibTorchDoes) {
  const at::Tensor gate = normal({size_}, 13, at::kBFloat16),
                   up = normal({size_}, 14, at::kBFloat16);
  at::Tensor h = at::empty_like(gate);
  const auto bits = [](const at::Tensor& t) { return static_cast<uint16_t*>(t.data_ptr()); };
  table_->bf16.gated_forward(Activation::kSilu, bits(gate), bits(up), bits(h), size_);
  const at::Tensor g = gate.to(at::kFloat);
  EXPECT_TRUE(close(h, g * at::sigmoid(g) * up.to(at::kFloat), 8e-3));
}

INSTANTIATE_TEST_SUITE_P(Sizes, RowKernels,
                         ::testing::Combine(::testing::Values("generic", "avx2", "avx512"),
                                            ::testing::Values(1, 7, 17, 63, 64, 65, 576, 1000)),
                         [](const auto& param_info) {
                           return std::string(std::get<0>(param_info.param)) + "_" +
                                  std::to_string(std::get<1>(param_info.param));
                         });

TEST(CpuTable, SumOfSquaresOfManyValues) {
  const at::Tensor x = normal({100003}, 15);
  EXPECT_NEAR(cpu_kernels().sum_of_squares(x.data_ptr<float>(), x.numel()),
              x.to(at::kDouble).pow(2).sum().item<double>(), 1e-2);
}

}  // namespace
}  // namespace sftrun::kernels
