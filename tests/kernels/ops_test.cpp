#include "sftrun/kernels/ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "sftrun/kernels/backend.h"
#include "sftrun/kernels/memory.h"
#include "support/matmul.h"
#include "support/tensors.h"

namespace sftrun::kernels {
namespace {

using test::close;
using test::matmul_nt;
using test::normal;
using test::tolerance_for;

BatchContext batch_of(const std::vector<int32_t>& lengths, int64_t head_dim) {
  BatchContext batch;
  batch.cu_seqlens = {0};
  std::vector<at::Tensor> positions;
  for (const int32_t length : lengths) {
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
    batch.max_seqlen = std::max(batch.max_seqlen, length);
    positions.push_back(at::arange(length, at::kFloat));
    for (int32_t i = 0; i < length; ++i) {
      batch.token_keys.push_back(
          {static_cast<uint32_t>(batch.cu_seqlens.size()), static_cast<uint32_t>(i)});
    }
  }
  const at::Tensor angle = at::cat(positions).unsqueeze(1) *
                           at::pow(10000.0, -at::arange(head_dim / 2, at::kFloat) * 2 / head_dim);
  batch.ropes = {{at::cos(angle).contiguous(), at::sin(angle).contiguous()}};
  batch.training = true;
  return batch;
}

struct AttentionCase {
  int64_t heads, kv_heads, head_dim;
  std::vector<int32_t> lengths;
  at::ScalarType dtype;
  int64_t window = 0;
  double softcap = 0;
};

double loss_of(const HeadLoss& head) {
  return head.loss_sum.item<double>();
}

class Attention : public ::testing::TestWithParam<AttentionCase> {};

// Against softmax(q k^T) v written out in fp64, document by document.
TEST_P(Attention, ForwardAndBackward) {
  const AttentionCase& c = GetParam();
  const BatchContext batch = batch_of(c.lengths, c.head_dim);
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
  const BatchContext batch = batch_of({100, 31}, 64);
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
        MatmulCase{1100, 300, 4100, 8, at::kBFloat16}));

// Whatever multiplies: sums of rows and columns of very different sizes, no worse than those of
// LibTorch's product in fp32.
TEST(Matmul, IsAsExactAsFp32) {
  for (const int64_t depth : {100, 576, 3000}) {
    const at::Tensor rows = at::exp(normal({150, 1}, 3) * 8), columns = at::exp(normal({70, 1}, 4));
    const at::Tensor x = normal({150, depth}, 1) * rows, w = normal({70, depth}, 2) * columns;
    const at::Tensor expected = at::mm(wide(x), wide(w).t()),
                     size = at::mm(wide(x).abs(), wide(w).abs().t());
    const auto error_of = [&](const at::Tensor& actual) {
      return ((wide(actual) - expected) / size).square().mean().sqrt().item<double>();
    };
    // Half a unit in the last place of fp32: MKL's own are between 7e-9 and 2.8e-8 of the summands'
    // size, by processor.
    constexpr double kHalfUnit = 3e-8;
    EXPECT_LT(error_of(matmul_nt(x, w)), std::max(kHalfUnit, 2.5 * error_of(at::mm(x, w.t()))))
        << depth;
  }
}

TEST(Matmul, WhatIsNoNumberStaysNone) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor x = at::ones({70, 64}, dtype);
      x[3][5] = value;
      const at::Tensor sums = matmul_nt(x, at::ones({33, 64}, dtype));
      EXPECT_FALSE(sums[3].isfinite().any().item<bool>());
      EXPECT_TRUE(sums.slice(0, 4).eq(64).all().item<bool>());
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

TEST(Dropout, KeepsTheMeanAndItsOwnMask) {
  BatchContext batch = batch_of({64}, 8);
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

/// How a layer of some family differs from Llama's.
struct LayerKind {
  const char* name;
  bool norms_before = true, norms_after = false, fused = false;
  int64_t qk_norm = 0;  // channels that one norm of q or k spans: 0, the head's or all heads'
  double offset = 0, softcap = 0, residual_scale = 1;
  int64_t window = 0;
  int rope = 0;
  Gating gating = {};
  bool sinks = false;
};

const LayerKind kLlamaLayer{"llama"};
const LayerKind kLayerKinds[] = {
    kLlamaLayer,
    {.name = "gemma",
     .norms_after = true,
     .qk_norm = 16,
     .offset = 1,
     .softcap = 2,
     .window = 9,
     .gating = Activation::kGeluTanh},
    {.name = "olmo", .norms_before = false, .norms_after = true, .qk_norm = 64},
    {.name = "phi", .fused = true, .window = 70},
    {.name = "granite", .residual_scale = 0.3, .rope = -1},
    {.name = "gpt_oss", .gating = {Activation::kClampedSwiglu, 1.7F, 0.8F}, .sinks = true},
    {.name = "gpt_oss_window",
     .window = 9,
     .gating = {Activation::kClampedSwiglu, 1.7F, 0.8F},
     .sinks = true},
};

/// A layer with everything: biases, adapters, dropout, and (if wanted) trained weights.
struct LayerUnderTest {
  static constexpr int64_t kHidden = 64, kKv = 32, kInner = 96;
  ParameterStore store;
  Layer layer;
  uint32_t modules = 0;

  LayerUnderTest(const LayerKind& kind, bool trains_weights, at::ScalarType dtype) {
    describe(kind);
    // Rounding takes gradients at the limit to either side of it.
    if (dtype == at::kBFloat16) layer.gating.limit = 1e4F;
    declare_linears(kind, trains_weights);
    const std::vector<std::pair<Norm*, int64_t>> norms = norms_of(kind);
    if (kind.sinks && trains_weights) layer.sinks.parameter = store.add("sinks", {4}, 0, true);
    for (const auto& [norm, size] : norms) {
      norm->offset = kind.offset;
      if (trains_weights) norm->parameter = store.add("norm", {size}, 0, false);
    }
    store.allocate(dtype, at::kCPU);
    const at::NoGradGuard no_grad;
    uint64_t seed = 50;
    for (Parameter& parameter : store.parameters())
      parameter.master.copy_(normal(parameter.shape, ++seed) * 0.2);
    store.refresh_compute();
    const auto frozen = [&](std::vector<int64_t> shape) { return normal(shape, ++seed).to(dtype); };
    for (Linear* linear : layer.linears()) {
      const int64_t out = linear->lora->b->shape[0], in = linear->lora->a->shape[1];
      linear->weight = trains_weights ? linear->weight_parameter->compute : frozen({out, in}) * 0.2;
      linear->bias = trains_weights ? linear->bias_parameter->compute : frozen({out});
    }
    if (kind.sinks)
      layer.sinks.weight = trains_weights ? layer.sinks.parameter->compute : frozen({4});
    for (const auto& [norm, size] : norms)
      norm->weight = norm->parameter ? norm->parameter->compute : frozen({size});
  }

 private:
  void describe(const LayerKind& kind) {
    layer.attention = {4, 2, 16, 0.25, kind.window, kind.softcap};
    layer.rope = kind.rope;
    layer.gating = kind.gating;
    layer.residual_scale = kind.residual_scale;
  }

  void declare_linears(const LayerKind& kind, bool trains_weights) {
    using Shape = std::vector<int64_t>;
    const auto declare = [&](Linear& linear, const char* name, int64_t out, int64_t in) {
      linear.name = name;
      if (trains_weights) {
        linear.weight_parameter = store.add(linear.name + ".w", Shape{out, in}, 0, true);
        linear.bias_parameter = store.add(linear.name + ".b", Shape{out}, 0, false);
      }
      LoraAdapter lora;
      lora.a = store.add(linear.name + ".lora_a", Shape{4, in}, 0, true);
      lora.b = store.add(linear.name + ".lora_b", Shape{out, 4}, 0, true);
      lora.scale = 1.5;
      lora.dropout = linear.name == "k" || linear.name == "down" ? 0.2 : 0;
      lora.module_number = ++modules;
      linear.lora = lora;
    };
    if (kind.fused) {
      declare(layer.qkv, "qkv", kHidden + 2 * kKv, kHidden);
      declare(layer.gate_up, "gate_up", 2 * kInner, kHidden);
    } else {
      declare(layer.q, "q", kHidden, kHidden);
      declare(layer.k, "k", kKv, kHidden);
      declare(layer.v, "v", kKv, kHidden);
      declare(layer.gate, "gate", kInner, kHidden);
      declare(layer.up, "up", kInner, kHidden);
    }
    declare(layer.o, "o", kHidden, kHidden);
    declare(layer.down, "down", kHidden, kInner);
  }

  std::vector<std::pair<Norm*, int64_t>> norms_of(const LayerKind& kind) {
    std::vector<std::pair<Norm*, int64_t>> norms;
    if (kind.norms_before) {
      norms.emplace_back(&layer.attention_in, kHidden);
      norms.emplace_back(&layer.feed_forward_in, kHidden);
    }
    if (kind.norms_after) {
      norms.emplace_back(&layer.attention_out, kHidden);
      norms.emplace_back(&layer.feed_forward_out, kHidden);
    }
    if (kind.qk_norm > 0) {
      norms.emplace_back(&layer.q_norm, kind.qk_norm);
      norms.emplace_back(&layer.k_norm, std::min(kind.qk_norm, kKv));
    }
    return norms;
  }
};

// What layer, whether weights train, tokens of the second document, dtype
using BackendCase = std::tuple<LayerKind, bool, int32_t, at::ScalarType>;
class Backends : public ::testing::TestWithParam<BackendCase> {};

TEST_P(Backends, GiveTheSameValuesAndGradients) {
  const auto [kind, trains_weights, length, dtype] = GetParam();
  const double tolerance = dtype == at::kFloat ? 2e-5 : 8e-2;
  constexpr int64_t kHidden = LayerUnderTest::kHidden;
  const BatchContext batch = batch_of({10, length}, 16);
  const at::Tensor x = normal({10 + length, kHidden}, 70).to(dtype),
                   dy = normal({10 + length, kHidden}, 71).to(dtype);
  std::vector<at::Tensor> outputs, dx, flat_grads;
  for (const Backend* backend : {&fused_backend(), &plain_backend()}) {
    LayerUnderTest test(kind, trains_weights, dtype);
    std::unique_ptr<LayerRun> run;
    outputs.push_back(backend->layer_forward(test.layer, x, batch, &run));
    EXPECT_TRUE(at::equal(outputs.back(), backend->layer_forward(test.layer, x, batch, nullptr)));
    dx.push_back(run->backward(dy, /*needs_input_grad=*/true));
    flat_grads.push_back(test.store.grad().clone());
    // What lies before the first trained layer needs no gradient; the parameters' stay the same.
    test.store.zero_grad();
    backend->layer_forward(test.layer, x, batch, &run);
    EXPECT_FALSE(run->backward(dy, /*needs_input_grad=*/false).defined());
    EXPECT_TRUE(at::equal(test.store.grad(), flat_grads.back()));
  }
  EXPECT_TRUE(close(outputs[0], outputs[1], tolerance));
  EXPECT_TRUE(close(dx[0], dx[1], tolerance));
  EXPECT_TRUE(close(flat_grads[0], flat_grads[1], tolerance));
  EXPECT_GT(flat_grads[0].abs().max().item<double>(), 0.1);
}
std::string name_of_case(const ::testing::TestParamInfo<BackendCase>& param_info) {
  const auto& [kind, trains_weights, length, dtype] = param_info.param;
  return std::string(kind.name) + (trains_weights ? "_full_" : "_lora_") + std::to_string(length) +
         "_" + c10::toString(dtype);
}
INSTANTIATE_TEST_SUITE_P(Layers, Backends,
                         ::testing::Combine(::testing::ValuesIn(kLayerKinds), ::testing::Bool(),
                                            ::testing::Values(7, 150),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         name_of_case);

// As it is; and with scaled, capped logits.
class HeadLosses : public ::testing::TestWithParam<double> {};

TEST_P(HeadLosses, EqualCrossEntropyAndItsGradients) {
  ParameterStore store;
  Head head;
  head.softcap = GetParam();
  head.logit_scale = GetParam() > 0 ? 0.5 : 1;
  Linear& linear = head.linear;
  linear.weight_parameter = store.add("lm_head.weight", {301, 32}, 0, true);
  Norm& norm = head.norm;
  norm.parameter = store.add("norm.weight", {32}, 0, false);
  store.allocate(at::kFloat, at::kCPU);
  {
    const at::NoGradGuard no_grad;
    linear.weight_parameter->master.copy_(normal({301, 32}, 80));
    norm.parameter->master.copy_(normal({32}, 82));
  }
  linear.weight = linear.weight_parameter->compute;
  const at::Tensor hidden = normal({150, 32}, 81), labels = at::arange(150, at::kInt) * 2;
  norm.weight = norm.parameter->compute;
  const auto run = [&](const Backend& backend, HeadGrad wanted) {
    store.zero_grad();
    return backend.head_loss(hidden, head, labels, 0.01, wanted, {});
  };
  const HeadLoss fused = run(fused_backend(), HeadGrad::kInput);
  const at::Tensor fused_grads = store.grad().clone();
  const HeadLoss plain = run(plain_backend(), HeadGrad::kInput);
  EXPECT_NEAR(loss_of(fused) / loss_of(plain), 1, 1e-6);
  EXPECT_TRUE(close(fused.grad_input, plain.grad_input, 1e-5));
  EXPECT_TRUE(close(fused_grads, store.grad(), 1e-5));
  for (const Backend* backend : {&fused_backend(), &plain_backend()}) {
    EXPECT_FALSE(run(*backend, HeadGrad::kParameters).grad_input.defined());
    EXPECT_TRUE(close(store.grad(), fused_grads, 1e-5));
    EXPECT_NEAR(loss_of(run(*backend, HeadGrad::kNone)) / loss_of(plain), 1, 1e-6);
    EXPECT_EQ(store.grad().abs().max().item<double>(), 0);
  }
  EXPECT_NEAR(label_losses(head, hidden, labels).sum().item<double>() / loss_of(plain), 1, 1e-6);
  const at::Tensor log_p = at::log_softmax(logits_of(head, hidden), -1);
  EXPECT_NEAR(
      -log_p.gather(1, labels.to(at::kLong).unsqueeze(1)).sum().item<double>() / loss_of(plain), 1,
      1e-6);
}
INSTANTIATE_TEST_SUITE_P(SoftCap, HeadLosses, ::testing::Values(0.0, 5.0));

/// Sum of factor * loss over rows and its gradient of the input, by autograd in fp64.
std::pair<double, at::Tensor> weighted_losses_in_fp64(const at::Tensor& hidden, const Head& head,
                                                      const at::Tensor& labels,
                                                      const at::Tensor& factors) {
  const auto wide = [](const at::Tensor& x) { return x.detach().to(at::kDouble); };
  const at::Tensor x = wide(hidden).requires_grad_();
  const at::Tensor normed =
      x * at::rsqrt(x.square().mean(-1, true) + head.norm.eps) * wide(head.norm.weight);
  at::Tensor logits = at::mm(normed, wide(head.linear.weight).t()) * head.logit_scale;
  if (head.softcap > 0) logits = at::tanh(logits / head.softcap) * head.softcap;
  const at::Tensor losses =
      -at::log_softmax(logits, -1).gather(1, labels.to(at::kLong).unsqueeze(1)).squeeze(1);
  torch::autograd::backward({(losses * wide(factors)).sum()});
  return {losses.sum().item<double>(), x.grad()};
}

// Whether logits are scaled and capped; dtype
using WeightedHeadCase = std::tuple<bool, at::ScalarType>;
class WeightedHeads : public ::testing::TestWithParam<WeightedHeadCase> {};

/// A factor for the gradient of each row: positive, negative, none. 300 rows are several chunks of
/// the plain backend.
TEST_P(WeightedHeads, EqualAutogradInFp64) {
  const auto [is_capped, dtype] = GetParam();
  ParameterStore store;
  Head head;
  head.softcap = is_capped ? 5 : 0;
  head.logit_scale = is_capped ? 0.5 : 1;
  head.norm.weight = normal({32}, 82).to(dtype);
  head.linear.weight = normal({601, 32}, 80).to(dtype);
  const at::Tensor hidden = normal({300, 32}, 81).to(dtype), labels = at::arange(300, at::kInt) * 2;
  const at::Tensor factors = normal({300}, 83);
  factors.narrow(0, 10, 20).zero_();
  const auto [loss, grad] = weighted_losses_in_fp64(hidden, head, labels, factors);
  for (const Backend* backend : {&fused_backend(), &plain_backend()}) {
    const GradScale scale(0.01, {}, factors);
    const HeadLoss made = backend->head_loss(hidden, head, labels, scale, HeadGrad::kInput, {});
    const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
    EXPECT_NEAR(loss_of(made) / loss, 1, tolerance);
    EXPECT_TRUE(close(made.grad_input, grad * 0.01, tolerance));
    EXPECT_EQ(made.grad_input.narrow(0, 10, 20).abs().max().item<double>(), 0);
    EXPECT_TRUE(close(backend->label_losses(hidden, head, labels, {}).sum(at::kDouble),
                      made.loss_sum, tolerance));
    // Factors of one are no factors.
    const auto grad_with = [&](const GradScale& of) {
      return backend->head_loss(hidden, head, labels, of, HeadGrad::kInput, {}).grad_input;
    };
    EXPECT_TRUE(at::equal(grad_with({0.01, {}, at::ones({300})}), grad_with(0.01)));
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, WeightedHeads,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(at::kFloat, at::kBFloat16)));

// Vocabulary (the larger in several chunks), dropout, DoRA
using AdaptedHeadCase = std::tuple<int64_t, double, bool>;
class AdaptedHeads : public ::testing::TestWithParam<AdaptedHeadCase> {};

/// A head's update beside a frozen weight: written out, and under autograd.
TEST_P(AdaptedHeads, GiveTheSameLossesAndGradients) {
  const auto [vocab, dropout, dora] = GetParam();
  constexpr int64_t kHidden = 16, kRank = 3, kRows = 300;
  ParameterStore store;
  Head head;
  head.softcap = 4;
  head.logit_scale = 0.5;
  LoraAdapter lora;
  lora.a = store.add("lora_A", {kRank, kHidden}, 0, true);
  lora.b = store.add("lora_B", {vocab, kRank}, 0, true);
  if (dora) lora.magnitude = store.add("lora_magnitude_vector", {vocab}, 0, true);
  lora.scale = 1.5;
  lora.dropout = dropout;
  head.linear.weight = normal({vocab, kHidden}, 84);
  head.linear.lora = lora;
  store.allocate(at::kFloat, at::kCPU);
  head.norm.weight = normal({kHidden}, 85);
  if (dora) head.linear.lora->squares = head.linear.weight.square().sum(1);
  {
    const at::NoGradGuard no_grad;
    uint64_t seed = 86;
    for (Parameter& parameter : store.parameters())
      parameter.master.copy_(normal(parameter.shape, ++seed));
  }
  const at::Tensor hidden = normal({kRows, kHidden}, 81),
                   labels = at::arange(kRows, at::kInt) % static_cast<int32_t>(vocab);
  const at::Tensor label_rows = at::arange(kRows, at::kLong) * 2;
  const BatchContext rows = dropout_rows(batch_of({350, 250}, 16), label_rows);
  const auto run = [&](const Backend& backend, HeadGrad wanted) {
    store.zero_grad();
    return backend.head_loss(hidden, head, labels, 0.01, wanted, rows);
  };
  const HeadLoss fused = run(fused_backend(), HeadGrad::kInput);
  const at::Tensor fused_grads = store.grad().clone();
  const HeadLoss plain = run(plain_backend(), HeadGrad::kInput);
  // LibTorch sums a rank's products over the vocabulary one after the other on some processors.
  const double tolerance = vocab > 10'000 ? 1e-3 : 2e-5;
  EXPECT_NEAR(loss_of(fused) / loss_of(plain), 1, 1e-6);
  EXPECT_TRUE(close(fused.grad_input, plain.grad_input, tolerance));
  EXPECT_TRUE(close(fused_grads, store.grad(), tolerance));
  for (const Backend* backend : {&fused_backend(), &plain_backend()}) {
    EXPECT_FALSE(run(*backend, HeadGrad::kParameters).grad_input.defined());
    EXPECT_TRUE(close(store.grad(), fused_grads, tolerance));
  }
  if (dropout > 0) return;
  EXPECT_NEAR(label_losses(head, hidden, labels).sum().item<double>() / loss_of(plain), 1, 1e-6);
  const at::Tensor log_p = at::log_softmax(logits_of(head, hidden), -1);
  EXPECT_NEAR(
      -log_p.gather(1, labels.to(at::kLong).unsqueeze(1)).sum().item<double>() / loss_of(plain), 1,
      1e-6);
}
INSTANTIATE_TEST_SUITE_P(Kinds, AdaptedHeads,
                         ::testing::Combine(::testing::Values(301, 80000),
                                            ::testing::Values(0.0, 0.3), ::testing::Bool()));

TEST(CpuAllocator, CountsReusesAndAligns) {
  install_cpu_allocator();
  const MemoryStats before = cpu_memory_stats();
  constexpr int64_t kBytes = 1 << 20;
  const void* address = nullptr;
  {
    const at::Tensor block = at::empty({kBytes}, at::kByte);
    address = block.data_ptr();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % 64, 0U);
    EXPECT_GE(cpu_memory_stats().allocated_bytes, before.allocated_bytes + kBytes);
  }
  EXPECT_EQ(cpu_memory_stats().allocated_bytes, before.allocated_bytes);
  const at::Tensor again = at::empty({kBytes}, at::kByte);
  EXPECT_EQ(again.data_ptr(), address);
  EXPECT_EQ(at::empty({0}).numel(), 0);
  reset_cpu_peak();
  { const at::Tensor large = at::empty({4 * kBytes}, at::kByte); }
  EXPECT_GE(cpu_memory_stats().peak_bytes, cpu_memory_stats().allocated_bytes + 4 * kBytes);
}

}  // namespace
}  // namespace sftrun::kernels
