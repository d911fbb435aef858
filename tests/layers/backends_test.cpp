#include "sftrun/layers/backend.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "sftrun/layers/attention.h"
#include "sftrun/spec/arch_spec.h"
#include "support/batches.h"
#include "support/tensors.h"

// The two backends give the same values and gradients.
namespace sftrun::layers {
namespace {

using test::close;
using test::normal;

BatchContext batch_of(const std::vector<int32_t>& lengths, int64_t head_dim) {
  BatchContext batch;
  static_cast<kernels::BatchMetadata&>(batch) = test::batch_of(lengths, head_dim);
  return batch;
}

double loss_of(const HeadLoss& head) {
  return head.loss_sum.item<double>();
}

/// How a layer of some family differs from Llama's.
struct LayerKind {
  const char* name;
  bool norms_before = true, norms_after = false, fused = false;
  int64_t qk_norm = 0;  // channels that one norm of q or k spans: 0, the head's or all heads'
  double offset = 0, softcap = 0, residual_scale = 1;
  int64_t window = 0;
  int rope = 0;
  kernels::Gating gating = {};
  bool sinks = false;
  bool both_ways = false;
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
     .gating = kernels::Activation::kGeluTanh},
    {.name = "olmo", .norms_before = false, .norms_after = true, .qk_norm = 64},
    {.name = "phi", .fused = true, .window = 70},
    {.name = "granite", .residual_scale = 0.3, .rope = -1},
    {.name = "gpt_oss", .gating = {kernels::Activation::kClampedSwiglu, 1.7F, 0.8F}, .sinks = true},
    {.name = "gpt_oss_window",
     .window = 9,
     .gating = {kernels::Activation::kClampedSwiglu, 1.7F, 0.8F},
     .sinks = true},
    {.name = "gemma_images", .norms_after = true, .qk_norm = 16, .offset = 1, .both_ways = true},
    {.name = "gemma_images_window", .softcap = 2, .window = 5, .sinks = true, .both_ways = true},
};

/// A layer with everything: biases, adapters, dropout, and (if wanted) trained weights.
struct LayerUnderTest {
  static constexpr int64_t kHidden = 64, kKv = 32, kInner = 96;
  ParameterStore store;
  Layer layer;
  Attention* attention = nullptr;  // of the layer
  uint32_t modules = 0;

  LayerUnderTest(const LayerKind& kind, bool trains_weights, at::ScalarType dtype) {
    describe(kind);
    // Rounding takes gradients at the limit to either side of it.
    if (dtype == at::kBFloat16) layer.gating.limit = 1e4F;
    declare_linears(kind, trains_weights);
    const std::vector<std::pair<Norm*, int64_t>> norms = norms_of(kind);
    if (kind.sinks && trains_weights) attention->sinks.parameter = store.add("sinks", {4}, 0, true);
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
      attention->sinks.weight = trains_weights ? attention->sinks.parameter->compute : frozen({4});
    for (const auto& [norm, size] : norms)
      norm->weight = norm->parameter ? norm->parameter->compute : frozen({size});
  }

 private:
  void describe(const LayerKind& kind) {
    auto made = std::make_unique<Attention>();
    attention = made.get();
    layer.mixer = std::move(made);
    attention->shape = {4, 2, 16, 0.25, kind.window, kind.softcap};
    attention->shape.both_ways = kind.both_ways;
    attention->rope = kind.rope;
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
      declare(attention->qkv, "qkv", kHidden + 2 * kKv, kHidden);
      declare(layer.feed_forward.gate_up, "gate_up", 2 * kInner, kHidden);
    } else {
      declare(attention->q, "q", kHidden, kHidden);
      declare(attention->k, "k", kKv, kHidden);
      declare(attention->v, "v", kKv, kHidden);
      declare(layer.feed_forward.gate, "gate", kInner, kHidden);
      declare(layer.feed_forward.up, "up", kInner, kHidden);
    }
    declare(attention->output, "o", kHidden, kHidden);
    declare(layer.feed_forward.down, "down", kHidden, kInner);
  }

  std::vector<std::pair<Norm*, int64_t>> norms_of(const LayerKind& kind) {
    std::vector<std::pair<Norm*, int64_t>> norms;
    if (kind.norms_before) {
      norms.emplace_back(&layer.mixer_in, kHidden);
      norms.emplace_back(&layer.feed_forward.in, kHidden);
    }
    if (kind.norms_after) {
      norms.emplace_back(&layer.mixer_out, kHidden);
      norms.emplace_back(&layer.feed_forward.out, kHidden);
    }
    if (kind.qk_norm > 0) {
      norms.emplace_back(&attention->q_norm, kind.qk_norm);
      norms.emplace_back(&attention->k_norm, std::min(kind.qk_norm, kKv));
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
  BatchContext batch = batch_of({10, length}, 16);
  batch.both_ways = {{2, 10}, {11, 9 + length}};  // in layers that see them so
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
std::string name_of_backend_case(const ::testing::TestParamInfo<BackendCase>& param_info) {
  const auto& [kind, trains_weights, length, dtype] = param_info.param;
  return std::string(kind.name) + (trains_weights ? "_full_" : "_lora_") + std::to_string(length) +
         "_" + c10::toString(dtype);
}
INSTANTIATE_TEST_SUITE_P(Layers, Backends,
                         ::testing::Combine(::testing::ValuesIn(kLayerKinds), ::testing::Bool(),
                                            ::testing::Values(7, 150),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         name_of_backend_case);

TEST(AttentionLayers, SeeSpansBothWaysWhereTheDescriptionHasIt) {
  spec::ArchSpec arch;
  arch.num_heads = arch.num_kv_heads = 1;
  arch.head_dim = 8;
  arch.layers.resize(2);
  arch.layers[1].window = 4;
  arch.layers[1].both_ways = true;
  const auto sees_both_ways = [&](int64_t layer) {
    return dynamic_cast<const Attention&>(*make_mixer(arch, layer, {})).shape.both_ways;
  };
  EXPECT_FALSE(sees_both_ways(0));
  EXPECT_TRUE(sees_both_ways(1));
}

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
  const at::Tensor sum = (losses * wide(factors)).sum();
  torch::autograd::backward({sum});
  return {sum.item<double>(), x.grad()};
}

// Whether logits are scaled and capped; dtype
using WeightedHeadCase = std::tuple<bool, at::ScalarType>;
class WeightedHeads : public ::testing::TestWithParam<WeightedHeadCase> {};

/// A factor for the loss of each row: positive, negative, none. 300 rows are several chunks of
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
    const kernels::GradScale scale(0.01, {}, factors);
    const HeadLoss made = backend->head_loss(hidden, head, labels, scale, HeadGrad::kInput, {});
    const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
    EXPECT_NEAR(loss_of(made) / loss, 1, tolerance);
    EXPECT_TRUE(close(made.grad_input, grad * 0.01, tolerance));
    EXPECT_EQ(made.grad_input.narrow(0, 10, 20).abs().max().item<double>(), 0);
    const HeadLoss measured =
        backend->head_loss(hidden, head, labels, {1, {}, factors}, HeadGrad::kNone, {});
    EXPECT_NEAR(loss_of(measured) / loss, 1, tolerance);
    const at::Tensor losses = backend->label_losses(hidden, head, labels, {});
    EXPECT_TRUE(close((losses * factors).sum(at::kDouble), made.loss_sum, tolerance));
    // Factors of one are no factors.
    const auto grad_with = [&](const kernels::GradScale& of) {
      return backend->head_loss(hidden, head, labels, of, HeadGrad::kInput, {}).grad_input;
    };
    EXPECT_TRUE(at::equal(grad_with({0.01, {}, at::ones({300})}), grad_with(0.01)));
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, WeightedHeads,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(at::kFloat, at::kBFloat16)));

/// A group of one rank, which has all of the vocabulary.
class LoneRank final : public TensorRanks {
 public:
  int64_t rank() const override { return 0; }
  int64_t size() const override { return 1; }
  void sum(const at::Tensor&) const override {}
  at::Tensor gather(const at::Tensor& values) const override { return values.unsqueeze(0); }
};

/// Rows of padding have neither loss nor gradient where the vocabulary is divided, too.
TEST(DividedHeads, IgnoreRowsWithoutLabel) {
  const LoneRank alone;
  for (const double softcap : {0.0, 4.0}) {
    Head head;
    head.softcap = softcap;
    head.vocab_size = 301;
    head.linear.weight = normal({301, 32}, 80);
    head.norm.weight = normal({32}, 82);
    const at::Tensor hidden = normal({60, 32}, 81), labels = at::arange(60, at::kInt) * 5;
    labels.narrow(0, 7, 20).fill_(-100);
    const auto run = [&](HeadGrad wanted) {
      return fused_backend().head_loss(hidden, head, labels, 0.01, wanted, {});
    };
    const HeadLoss whole = run(HeadGrad::kInput);
    const at::Tensor losses = label_losses(head, hidden, labels);
    head.linear.ranks = &alone;
    const HeadLoss divided = run(HeadGrad::kInput);
    EXPECT_NEAR(loss_of(divided) / loss_of(whole), 1, 1e-6);
    EXPECT_NEAR(loss_of(run(HeadGrad::kNone)) / loss_of(whole), 1, 1e-6);
    EXPECT_TRUE(close(divided.grad_input, whole.grad_input, 1e-5));
    EXPECT_EQ(divided.grad_input.narrow(0, 7, 20).abs().max().item<double>(), 0);
    EXPECT_TRUE(close(label_losses(head, hidden, labels), losses, 1e-5));
    labels.fill_(-100);
    EXPECT_EQ(loss_of(run(HeadGrad::kInput)), 0);
  }
}

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

}  // namespace
}  // namespace sftrun::layers
