#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>

#include "sftrun/core/rng.h"
#include "sftrun/kernels/cuda_device.h"
#include "sftrun/kernels/noise.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/quant.h"
#include "sftrun/layers/layer.h"
#include "sftrun/layers/mixture.h"
#include "sftrun/weights/ggml_type.h"
#include "support.h"
#include "support/matmul.h"
#include "support/quant_formats.h"
#include "support/random_blocks.h"
#include "support/tensors.h"

/// Every operation of ops.h on a card beside the same call on a CPU, over shapes that are no
/// multiples of anything.
namespace sftrun::kernels {
namespace {

using test::close;
using test::matmul_nt;
using test::normal;

using test::kCard;

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor here = b.cpu().contiguous();
  return a.scalar_type() == here.scalar_type() && a.sizes() == here.sizes() &&
         std::memcmp(a.const_data_ptr(), here.const_data_ptr(), a.nbytes()) == 0;
}

/// What an operation makes on a device of values that it moves there.
using Moved = std::function<at::Tensor(const at::Tensor&)>;
using Op = std::function<std::vector<at::Tensor>(const Moved& to)>;

/// @param tolerance of the largest value
void expect_same(const char* what, double tolerance, const Op& op) {
  SCOPED_TRACE(what);
  const at::NoGradGuard no_grad;
  const auto here = op([](const at::Tensor& x) { return x.clone(); });
  const auto there = op([](const at::Tensor& x) { return x.to(kCard); });
  ASSERT_EQ(here.size(), there.size());
  for (size_t i = 0; i < here.size(); ++i) {
    if (tolerance == 0)
      EXPECT_TRUE(same_bits(here[i].contiguous(), there[i])) << "result " << i;
    else
      EXPECT_TRUE(close(there[i].cpu(), here[i], tolerance)) << "result " << i;
  }
}

class GpuKernels : public testing::TestWithParam<at::ScalarType> {
 protected:
  at::ScalarType dtype() const { return GetParam(); }
  at::Tensor values(at::IntArrayRef shape, uint64_t seed) const {
    return normal(shape, seed, dtype());
  }
  /// Of sums in another order, rounded once.
  double tolerance() const { return dtype() == at::kFloat ? 1e-5 : 1.6e-2; }
};
INSTANTIATE_TEST_SUITE_P(Types, GpuKernels, testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) {
                           return info.param == at::kFloat ? std::string("fp32")
                                                           : std::string("bf16");
                         });

TEST_P(GpuKernels, RmsNorm) {
  for (const int64_t hidden : {1, 63, 576, 4099}) {
    const at::Tensor x = values({37, hidden}, 1), weight = values({hidden}, 2),
                     dy = values({37, hidden}, 3), residual = values({37, hidden}, 4);
    for (const double offset : {0.0, 1.0}) {
      expect_same("rms_norm", tolerance(), [&](const Moved& to) {
        const at::Tensor there = to(x), w = to(weight), d = to(dy);
        const auto [y, rstd] = rms_norm_forward(there, w, 1e-5, offset);
        return std::vector<at::Tensor>{
            y, rstd, rms_norm_backward(d, there, w, rstd, to(residual), offset),
            rms_norm_backward(d, there, w, rstd, {}, offset), rms_norm_weight_grad(d, there, rstd)};
      });
    }
  }
}

/// Queries and keys, both normed, one of them, none; rotated or not.
TEST_P(GpuKernels, Heads) {
  const int64_t tokens = 29;
  for (const auto& [head_dim, rotary] :
       {std::pair<int64_t, int64_t>{64, 64}, {80, 32}, {6, 2}, {128, 0}, {512, 512}}) {
    const at::Tensor q = values({tokens, 3 * head_dim}, 1), k = values({tokens, head_dim}, 2),
                     w = values({head_dim}, 3), dq = values({tokens, 3 * head_dim}, 4),
                     dk = values({tokens, head_dim}, 5),
                     angle = normal({tokens, rotary / 2}, 6, at::kFloat);
    for (int normed = 0; normed < 4; ++normed) {
      expect_same("heads", tolerance(), [&, head_dim = head_dim, rotary = rotary](const Moved& to) {
        const RopeAngles angles{to(at::cos(angle)), to(at::sin(angle))};
        const RopeAngles* rotation = rotary > 0 ? &angles : nullptr;
        const auto input = [&](const at::Tensor& x, bool has_norm) {
          return HeadsInput{to(x), has_norm ? to(w) : at::Tensor(), 1e-6, 1.0};
        };
        const std::vector<HeadsInput> raw = {input(q, normed % 2 == 1), input(k, normed / 2 == 1)},
                                      copy = {input(q, normed % 2 == 1), input(k, normed / 2 == 1)};
        const auto read = heads_forward(copy, rotation, head_dim);
        const auto grads =
            heads_backward(raw, {to(dq), to(dk)}, {read[0].rstd, read[1].rstd}, rotation, head_dim);
        return std::vector<at::Tensor>{read[0].y, read[1].y, grads[0], grads[1]};
      });
    }
  }
}

TEST_P(GpuKernels, Gated) {
  const at::Tensor gate = values({41, 333}, 1) * 3, up = values({41, 333}, 2) * 3,
                   dh = values({41, 333}, 3);
  for (const Gating& gating : {Gating(Activation::kSilu), Gating(Activation::kGeluTanh),
                               Gating(Activation::kClampedSwiglu, 1.702F, 2.0F)}) {
    expect_same("gated", tolerance(), [&](const Moved& to) {
      at::Tensor g = to(gate), u = to(up);
      const at::Tensor h = gated_forward(gating, g, u);
      gated_backward_(gating, to(dh), g, u);
      return std::vector<at::Tensor>{h, g, u};
    });
  }
}

BatchMetadata batch_of(const std::vector<int32_t>& lengths, const Moved& to) {
  BatchMetadata batch;
  batch.cu_seqlens = {0};
  for (const int32_t length : lengths) {
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
    batch.max_seqlen = std::max(batch.max_seqlen, length);
    for (int32_t i = 0; i < length; ++i)
      batch.token_keys.push_back(
          {static_cast<uint32_t>(batch.cu_seqlens.size()), static_cast<uint32_t>(i)});
  }
  batch.training = true;
  batch.dropout_seed = 7;
  batch.step = 3;
  batch.cu_seqlens_device = to(at::tensor(batch.cu_seqlens, at::kInt));
  batch.token_keys_device = to(at::from_blob(
      batch.token_keys.data(), {static_cast<int64_t>(batch.token_keys.size()), 2}, at::kInt));
  batch.step_device = to(at::tensor(std::vector<int32_t>{3}, at::kInt));
  return batch;
}

TEST_P(GpuKernels, DropoutDrawsTheSameMask) {
  const at::Tensor x = values({60, 129}, 1);
  expect_same("dropout", dtype() == at::kFloat ? 1e-7 : 1e-2, [&](const Moved& to) {
    return std::vector<at::Tensor>{dropout(to(x), batch_of({10, 50}, to), 0.3, 11)};
  });
}

TEST_P(GpuKernels, EmbeddingNoiseIsTheSame) {
  for (const int64_t channels : {64, 129}) {
    const at::Tensor x = values({60, channels}, 1);
    expect_same("noise", 0, [&](const Moved& to) {
      at::Tensor there = to(x);
      add_embedding_noise_(there, batch_of({10, 0, 49, 1}, to), 5, 12);
      return std::vector<at::Tensor>{there};
    });
  }
}

TEST_P(GpuKernels, CrossEntropy) {
  for (const int64_t vocab : {5, 1000, 49153}) {
    const at::Tensor logits = values({23, vocab}, 1) * 4,
                     labels = at::randint(vocab, {23}, at::kInt);
    labels[3] = labels[22] = -100;
    for (const double cap : {0.0, 5.0}) {
      expect_same("cross_entropy", tolerance(), [&](const Moved& to) {
        at::Tensor there = to(logits);
        const at::Tensor alone = token_losses(there, to(labels), cap);
        const at::Tensor losses = token_losses_and_grad_(there, to(labels), cap, 0.125);
        return std::vector<at::Tensor>{alone, losses, there};
      });
      const at::Tensor factors = values({23}, 2);
      expect_same("cross_entropy with factors of the rows", tolerance(), [&](const Moved& to) {
        at::Tensor there = to(logits);
        const GradScale scale(0.125, {}, to(factors).to(at::kFloat));
        const at::Tensor losses = token_losses_and_grad_(there, to(labels), cap, scale);
        return std::vector<at::Tensor>{losses, there};
      });
    }
  }
}

TEST_P(GpuKernels, Attention) {
  struct Case {
    int64_t heads, kv_heads, head_dim, window;
    double softcap;
    bool sinks;
    std::vector<RowSpan> both_ways = {};
  };
  const std::vector<RowSpan> spans = {{0, 1}, {5, 30}, {30, 41}, {45, 118}},
                             documents = {{0, 1}, {1, 41}, {41, 118}};
  for (const Case& c : {Case{4, 2, 64, 0, 0, false},
                        Case{3, 3, 32, 0, 0, false},
                        Case{8, 1, 128, 0, 0, false},
                        Case{4, 2, 64, 17, 0, false},
                        Case{2, 2, 64, 0, 20, false},
                        Case{4, 4, 64, 9, 0, true},
                        Case{3, 1, 20, 0, 0, false},
                        Case{2, 2, 17, 5, 0, true},
                        Case{4, 2, 256, 31, 20, true},
                        Case{2, 1, 200, 0, 0, false},
                        Case{2, 1, 512, 0, 0, false},
                        Case{2, 2, 320, 50, 10, false},
                        Case{4, 2, 64, 0, 0, false, spans},
                        Case{4, 1, 256, 17, 0, false, spans},
                        Case{2, 2, 20, 9, 20, true, spans},
                        Case{2, 1, 264, 30, 0, false, spans},
                        Case{4, 4, 64, 0, 0, false, documents},
                        Case{3, 3, 72, 0, 0, false, documents},
                        Case{2, 2, 80, 0, 0, false, documents},
                        Case{2, 1, 20, 0, 0, false, documents},
                        Case{4, 2, 64, 17, 0, false, documents}}) {
    AttentionShape shape{c.heads,    c.kv_heads,
                         c.head_dim, 1 / std::sqrt(static_cast<double>(c.head_dim)),
                         c.window,   c.softcap};
    shape.both_ways = !c.both_ways.empty();
    const int64_t tokens = 1 + 40 + 77;
    const at::Tensor q = values({tokens, c.heads * c.head_dim}, 1),
                     k = values({tokens, c.kv_heads * c.head_dim}, 2),
                     v = values({tokens, c.kv_heads * c.head_dim}, 3),
                     d = values({tokens, c.heads * c.head_dim}, 4), sinks = values({c.heads}, 5);
    expect_same("attention", dtype() == at::kFloat ? 2e-5 : 2e-2, [&](const Moved& to) {
      BatchMetadata batch = batch_of({1, 40, 77}, to);
      batch.both_ways = c.both_ways;
      batch.key_ends_device = to(key_ends_of(batch, tokens, at::kCPU));
      const at::Tensor qd = to(q), kd = to(k), vd = to(v), dd = to(d),
                       sd = c.sinks ? to(sinks) : at::Tensor();
      const AttentionOutput out = attention_forward(qd, kd, vd, batch, shape, sd);
      const AttentionGrads g = attention_backward(dd, qd, kd, vd, out, batch, shape);
      std::vector<at::Tensor> all = {out.out, g.dq, g.dk, g.dv};
      if (c.sinks) all.push_back(attention_sinks_grad(dd, out, sd));
      return all;
    });
  }
}

TEST_P(GpuKernels, AdamW) {
  const int64_t n = 10'007;
  const at::Tensor master = normal({n}, 1), grad = normal({n}, 2), m = normal({n}, 3) * 0.1,
                   v = normal({n}, 4).square();
  const AdamWParams params{.learning_rate = 1e-2F,
                           .beta1 = 0.9F,
                           .beta2 = 0.999F,
                           .epsilon = 1e-8F,
                           .weight_decay = 0.1F,
                           .bias_correction1 = 0.5F,
                           .sqrt_bias_correction2 = 0.3F,
                           .grad_scale = 0.7F,
                           .one_minus_beta1 = 0.1F,
                           .one_minus_beta2 = 0.001F};
  expect_same("adamw", dtype() == at::kFloat ? 1e-6 : 1e-2, [&](const Moved& to) {
    at::Tensor p = to(master), a = to(m), b = to(v),
               copy = dtype() == at::kFloat ? p : to(master.to(dtype()));
    adamw_(p, to(grad), a, b, copy, 0, n, params);
    return std::vector<at::Tensor>{p, a, b, copy};
  });
}

TEST(GpuReductions, SumOfSquares) {
  const at::Tensor x = normal({200'003}, 1);
  EXPECT_NEAR((sum_of_squares(x.to(kCard)).cpu() / sum_of_squares(x)).item<double>(), 1, 1e-6);
}

// ---- Matrices in fewer bits: to the bit.
void expect_same_values(const char* what, const QuantizedMatrix& matrix) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(what);
    EXPECT_TRUE(same_bits(dequantize(matrix, dtype), dequantize(matrix.to(kCard), dtype)))
        << c10::toString(dtype);
    const at::Tensor rows = at::tensor({2, 0, 2}, at::kLong);
    EXPECT_TRUE(same_bits(dequantize_rows(matrix, rows, dtype),
                          dequantize_rows(matrix.to(kCard), rows.to(kCard), dtype)));
  }
}

TEST(GpuQuant, ValuesAreTheCpus) {
  const at::Tensor weight = normal({67, 129}, 1);
  expect_same_values("nf4", quantize(weight, {.nested = false}));
  expect_same_values("nf4, factors quantised", quantize(weight, {}));
  expect_same_values("fp4", quantize(weight, {.format = QuantFormat::kFp4, .block_size = 32}));
  expect_same_values("rows of whole blocks", quantize(normal({67, 192}, 1), {}));
  expect_same_values("fp8", quantize(weight, {.format = QuantFormat::kFp8}));
  expect_same_values("int8", quantize(weight, {.format = QuantFormat::kInt8}));
  // Experts' matrices are parts of one.
  const QuantizedMatrix all = quantize(normal({40, 64}, 2), {.block_size = 32});
  EXPECT_TRUE(same_bits(dequantize(all.narrow(7, 11), at::kFloat),
                        dequantize(all.to(kCard).narrow(7, 11), at::kFloat)));
}

/// Some rows of a joint matrix, which begin where the rows before them end.
TEST(GpuQuant, ValuesInPartsOfAJointMatrix) {
  for (const int64_t columns : {96, 67}) {
    for (const QuantFormat format : test::made_formats()) {
      SCOPED_TRACE(std::string(quant_info(format).name) + ", " + std::to_string(columns));
      const QuantizedMatrix first = quantize(normal({5, columns}, 3), {.format = format}),
                            second = quantize(normal({3, columns}, 4), {.format = format});
      const at::Tensor joint =
          at::empty({8, columns}, at::TensorOptions().dtype(at::kBFloat16).device(kCard));
      dequantize_into(first.to(kCard), joint.narrow(0, 0, 5));
      dequantize_into(second.to(kCard), joint.narrow(0, 5, 3));
      EXPECT_TRUE(same_bits(
          at::cat({dequantize(first, at::kBFloat16), dequantize(second, at::kBFloat16)}), joint));
    }
  }
}

TEST(GpuQuant, BlocksOfGgmlAreTheCpus) {
  for (const test::BlockType& type : test::block_types())
    expect_same_values(std::string(test::info_of(type.type).name).c_str(),
                       test::random_blocks(type, 5, 3, 1));
}

TEST(GpuQuant, RoundedToE4m3) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor x = normal({33, 257}, 1, dtype) * 5;
    x[4].zero_();
    for (const at::Tensor& gains : {at::Tensor(), normal({257}, 2).abs()}) {
      const RoundedRows here = round_to_e4m3(x, gains),
                        there = round_to_e4m3(x.to(kCard),
                                              gains.defined() ? gains.to(kCard) : at::Tensor());
      EXPECT_TRUE(same_bits(here.scales, there.scales));
      EXPECT_TRUE(at::equal(here.codes.to(at::kFloat), there.codes.cpu().to(at::kFloat)));
    }
  }
}

/// Sums of a weight's gradient stay in fp32, many rows by a thin side and by a wide one.
TEST_P(GpuKernels, WeightGradients) {
  for (const auto& [rank, in] : {std::pair<int64_t, int64_t>{5, 130}, {8, 64}, {96, 257}}) {
    const at::Tensor g = values({3001, rank}, 1), x = values({3001, in}, 2);
    expect_same("weight gradients", 2e-5, [&, rank = rank, in = in](const Moved& to) {
      const at::Tensor there = to(x);
      at::Tensor sum = at::ones({rank, in}, there.options().dtype(at::kFloat));
      if (there.is_cuda())
        add_matmul_tn_(sum, to(g), there);
      else  // a CPU rounds wide ones
        sum.add_(at::mm(g.to(at::kDouble).t(), x.to(at::kDouble)).to(at::kFloat));
      return std::vector<at::Tensor>{sum};
    });
  }
}

TEST(GpuMemory, PinnedZerosTakeTheirOwnBytes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kByte}) {
    at::Tensor here = pinned_zeros({3, 1'001}, dtype, kCard);
    EXPECT_EQ(here.count_nonzero().item<int64_t>(), 0);
    EXPECT_TRUE(here.is_pinned());
    const at::Tensor there = at::full({3, 1'001}, 7, here.options().device(kCard));
    here.copy_(there, /*non_blocking=*/true);
    at::empty({1}, there.options()).cpu();  // waits for the stream
    EXPECT_TRUE(here.eq(7).all().item<bool>());
  }
  EXPECT_EQ(pinned_zeros({0}, at::kFloat, kCard).numel(), 0);
}

TEST_P(GpuKernels, ProductsByQuantisedMatrices) {
  for (const QuantFormat format : test::made_formats()) {
    for (const auto& [tokens, in, out] :
         {std::tuple<int64_t, int64_t, int64_t>{96, 128, 64}, {97, 130, 75}, {3, 64, 32}}) {
      SCOPED_TRACE(std::string(quant_info(format).name));
      const QuantizedMatrix w = quantize(normal({out, in}, 1), {.format = format});
      const QuantizedMatrix on_card = w.to(kCard);
      const at::Tensor x = values({tokens, in}, 2), dy = values({tokens, out}, 3),
                       bias = values({out}, 4), residual = values({tokens, out}, 5);
      expect_same("products", dtype() == at::kFloat ? 2e-5 : 2e-2, [&](const Moved& to) {
        const at::Tensor there = to(x);
        const QuantizedMatrix& matrix = there.is_cuda() ? on_card : w;
        return std::vector<at::Tensor>{matmul_sum({{there, matrix, true}}, to(residual), to(bias)),
                                       matmul_sum({{to(dy), matrix, false}})};
      });
    }
  }
}

/// Few rows: multiplied where they are unpacked. Beside the CPU's sums of the same values in fp32.
TEST_P(GpuKernels, ThinProducts) {
  std::vector<QuantizedMatrix> matrices;
  for (const QuantFormat format : test::formats_with_exact_activations()) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{67, 136}, {130, 4104}}) {
      matrices.push_back(quantize(normal({rows, columns}, 1), {.format = format}));
      matrices.push_back(quantize(normal({rows, columns}, 2), {.format = format, .nested = false}));
    }
    matrices.push_back(quantize(normal({13, 70}, 3), {.format = format}));  // unpacked whole
  }
  for (const test::BlockType& type : test::block_types())
    matrices.push_back(test::random_blocks(type, 11, 5, 7));
  for (const QuantizedMatrix& w : matrices) {
    const at::Tensor dense = dequantize(w, at::kFloat).to(at::kDouble);
    for (const int64_t tokens : {1, 2, 3, 4, 8, 9, 16, 17}) {
      SCOPED_TRACE(std::string(w.info().name) + ", " + std::to_string(tokens) + " tokens");
      const at::Tensor x = values({tokens, w.columns}, 4),
                       y = matmul_nt(x.to(kCard), w.to(kCard)).cpu();
      EXPECT_EQ(y.scalar_type(), dtype());
      EXPECT_TRUE(close(y, at::mm(x.to(at::kDouble), dense.t()), tolerance()));
    }
  }
}

TEST_P(GpuKernels, GroupedProducts) {
  const int64_t experts = 5, tokens = 200;
  const at::Tensor chosen = at::randint(experts - 1, {tokens, 2}, at::kLong);  // one has none
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{64, 96}, {50, 33}}) {
    const at::Tensor w = values({experts, out, in}, 1), x = values({2 * tokens, in}, 2),
                     g = values({2 * tokens, out}, 3);
    expect_same("grouped", dtype() == at::kFloat ? 2e-5 : 2e-2,
                [&, in = in, out = out](const Moved& to) {
                  const Routes routes = routes_of(to(chosen), experts);
                  const at::Tensor there = to(x), wd = to(w), gd = to(g);
                  at::Tensor sum = at::zeros({experts, out, in}, there.options().dtype(at::kFloat));
                  add_grouped_matmul_tn_(sum, gd, there, routes);
                  return std::vector<at::Tensor>{grouped_matmul(there, wd, true, routes),
                                                 grouped_matmul(gd, wd, false, routes), sum};
                });
  }
}

/// Codes that the product decodes, with an adapter beside them.
TEST_P(GpuKernels, GroupedProductsOfCodes) {
  const int64_t experts = 4, out = 96, in = 128, rank = 16, tokens = 300;
  const at::Tensor chosen = at::randint(experts, {tokens, 2}, at::kLong);
  const at::Tensor w = values({experts * out, in}, 1).to(at::kFloat),
                   x = values({2 * tokens, in}, 2), g = values({2 * tokens, out}, 3),
                   low = values({2 * tokens, rank}, 4), a = values({experts, rank, in}, 5),
                   b = values({experts, out, rank}, 6);
  for (const QuantFormat format :
       {QuantFormat::kNf4, QuantFormat::kFp4, QuantFormat::kFp8, QuantFormat::kInt8}) {
    const QuantizedMatrix codes = quantize(w, {.format = format}, "w");
    SCOPED_TRACE(std::string(codes.info().name));
    expect_same("grouped", dtype() == at::kFloat ? 2e-5 : 2e-2, [&](const Moved& to) {
      const Routes routes = routes_of(to(chosen), experts);
      const at::Tensor there = to(x);
      const QuantizedMatrix moved = codes.to(there.device());
      const ExpertStack stack(moved, experts);
      return std::vector<at::Tensor>{grouped_matmul(there, stack, true, routes, {to(low), to(b)}),
                                     grouped_matmul(to(g), stack, false, routes, {to(low), to(a)}),
                                     grouped_matmul(there, to(a), true, routes)};
    });
  }
}

/// What a mixture has beside its experts' matrices.
struct Extras {
  const char* name;
  bool normalises = true, is_balanced = false, has_biases = false, has_scale = false,
       has_shared = false, is_adapted = false, trains = false;
  Gating gating = Gating(Activation::kSilu);
};
constexpr Extras kMixtures[] = {
    {"frozen"},
    {.name = "probabilities", .normalises = false, .is_balanced = true, .trains = true},
    {.name = "adapted, balanced", .is_balanced = true, .is_adapted = true},
    {.name = "biases and adapters",
     .has_biases = true,
     .is_adapted = true,
     .gating = Gating(Activation::kClampedSwiglu, 1.702F, 2.0F)},
    {.name = "biases", .has_biases = true, .trains = true},
    {.name = "factors", .has_scale = true, .trains = true},
    {.name = "shared expert", .has_shared = true, .trains = true}};

/// A mixture on one device, with the parameters' gradients.
class MixtureThere {
 public:
  using Values = std::function<at::Tensor(at::IntArrayRef shape)>;  ///< in the compute dtype

  MixtureThere(const Extras& extras, int64_t experts, int64_t hidden, int64_t inner,
               const Moved& to, const Values& values)
      : to_(to), values_(values), trains_(extras.trains) {
    mixture.top_k = 2;
    mixture.normalise = extras.normalises;
    mixture.router = linear({experts, hidden}, at::kFloat);
    fill(mixture.gate_up, {experts, 2 * inner, hidden}, extras);
    fill(mixture.down, {experts, hidden, inner}, extras);
    if (extras.has_scale) {
      mixture.expert_scale = {value({experts}), parameter(at::zeros({experts}))};
      mixture.router_scale = 0.5;
    }
    if (!extras.has_shared) return;
    mixture.shared.gate = linear({inner, hidden});
    mixture.shared.up = linear({inner, hidden});
    mixture.shared.down = linear({hidden, inner});
    mixture.shared.router = linear({1, hidden});
  }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const layers::Parameter& parameter : parameters_) all.push_back(parameter.grad);
    return all;
  }

  layers::Mixture mixture;

 private:
  at::Tensor value(at::IntArrayRef shape) { return to_(values_(shape)); }
  /// Null where nothing trains.
  layers::Parameter* parameter(const at::Tensor& like, bool trains) {
    if (!trains) return nullptr;
    parameters_.emplace_back();
    parameters_.back().shape = like.sizes().vec();
    parameters_.back().compute = like;
    parameters_.back().grad = to_(at::ones(like.sizes(), at::kFloat));
    return &parameters_.back();
  }
  layers::Parameter* parameter(const at::Tensor& like) { return parameter(like, trains_); }
  layers::Linear linear(at::IntArrayRef shape) { return linear(shape, values_({1}).scalar_type()); }
  layers::Linear linear(at::IntArrayRef shape, at::ScalarType dtype) {
    layers::Linear made;
    made.name = "linear";
    made.weight = value(shape).to(dtype);
    made.weight_parameter = parameter(made.weight);
    return made;
  }
  void fill(layers::ExpertMatrix& matrix, at::IntArrayRef shape, const Extras& extras) {
    constexpr int64_t kRank = 4;
    matrix.weight = value(shape);
    matrix.parameter = parameter(matrix.weight);
    if (extras.has_biases) {
      matrix.bias.weight = value({shape[0], shape[1]});
      matrix.bias.parameter = parameter(matrix.bias.weight);
    }
    if (!extras.is_adapted) return;
    matrix.lora = layers::ExpertLora{.a = parameter(value({shape[0], kRank, shape[2]}), true),
                                     .b = parameter(value({shape[0], shape[1], kRank}), true),
                                     .scale = 0.5};
  }

  Moved to_;
  Values values_;
  bool trains_;
  std::deque<layers::Parameter> parameters_;
};

/// Forward and backward, with the parameters' gradients, over sizes of whole 16 bytes and not.
TEST_P(GpuKernels, Mixtures) {
  constexpr int64_t kTokens = 37, kExperts = 5;
  for (const Extras& extras : kMixtures) {
    for (const auto& [hidden, inner] : {std::pair<int64_t, int64_t>{64, 48}, {33, 20}}) {
      const at::Tensor x = values({kTokens, hidden}, 1), dy = values({kTokens, hidden}, 2);
      expect_same(
          extras.name, dtype() == at::kFloat ? 2e-5 : 4e-2,
          [&, hidden = hidden, inner = inner](const Moved& to) {
            uint64_t seed = 3;
            MixtureThere made(extras, kExperts, hidden, inner, to, [&](at::IntArrayRef shape) {
              return (values(shape, seed++) * 0.3).to(dtype());
            });
            layers::BatchContext batch;
            batch.shared_state = std::make_shared<layers::SharedLayerState>();
            layers::RouterBalance& balance = batch.shared_state->balance;
            balance.counts = extras.is_balanced;
            const at::Tensor there = to(x);
            layers::MixtureRun run;
            std::vector<at::Tensor> results{
                layers::mixture_forward(made.mixture, extras.gating, there, batch, &run)};
            if (extras.is_balanced) results.push_back(layers::close_balance(balance, 20));
            results.push_back(layers::mixture_backward(made.mixture, extras.gating, std::move(run),
                                                       to(dy), there, batch, /*needs_dx=*/true)
                                  .dx);
            for (const at::Tensor& grad : made.gradients()) results.push_back(grad);
            return results;
          });
    }
  }
}

/// The CPU's order, whatever the sizes.
TEST(GpuExperts, RoutesAreThoseOfTheCpu) {
  for (const auto& [tokens, top_k, experts] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {50, 3, 7}, {700, 8, 128}}) {
    const at::Tensor chosen = at::randint(experts, {tokens, top_k}, at::kLong);
    const Routes here = routes_of(chosen, experts), there = routes_of(chosen.to(kCard), experts);
    EXPECT_TRUE(at::equal(there.ends.cpu(), here.ends));
    EXPECT_TRUE(at::equal(there.slots.cpu().to(at::kLong), here.slots));
    EXPECT_TRUE(at::equal(there.experts.cpu().to(at::kLong), here.experts));
    const at::Tensor slots = there.rows.cpu().flatten().to(at::kLong).index_select(0, here.slots);
    EXPECT_TRUE(at::equal(slots, at::arange(tokens * top_k)));
  }
}

}  // namespace
}  // namespace sftrun::kernels
