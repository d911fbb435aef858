#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "sftrun/kernels/delta_chunks.h"
#include "sftrun/layers/attention.h"
#include "sftrun/layers/backend.h"
#include "sftrun/layers/delta_net.h"
#include "sftrun/layers/dora.h"
#include "sftrun/layers/embedding.h"
#include "sftrun/layers/per_layer_inputs.h"
#include "support/tensors.h"

/// A pass with adapters off equals, bit for bit, that of the same weights without adapters.
namespace sftrun::layers {
namespace {

using test::normal;
using test::same_bits;

/// Gives linears and experts weights, and adapters whose A and B are random.
class AdaptedWeights {
 public:
  static constexpr int64_t kHidden = 32, kRank = 3;
  ParameterStore store;

  explicit AdaptedWeights(bool dora) : dora_(dora) {}

  void add(Linear& linear, const char* name, int64_t out, int64_t in, bool in_fp32 = false) {
    linear.name = name;
    linear.weight = normal({out, in}, ++seed_) * 0.3;
    LoraAdapter lora;
    lora.a = store.add(linear.name + ".lora_A", {kRank, in}, 0, true);
    lora.b = store.add(linear.name + ".lora_B", {out, kRank}, 0, true);
    if (dora_) lora.magnitude = store.add(linear.name + ".magnitude", {out}, 0, true);
    lora.scale = 1.5;
    lora.dropout = 0.2;
    lora.module_number = static_cast<uint32_t>(seed_);
    lora.a->in_fp32 = lora.b->in_fp32 = in_fp32;
    linear.lora = lora;
    if (dora_) linear.lora->squares = row_squares(linear);
  }

  void add(ExpertMatrix& matrix, const char* name, int64_t experts, int64_t out, int64_t in) {
    matrix.name = name;
    matrix.weight = normal({experts, out, in}, ++seed_) * 0.3;
    ExpertLora lora;
    lora.a = store.add(matrix.name + ".lora_A", {experts, kRank, in}, 0, true);
    lora.b = store.add(matrix.name + ".lora_B", {experts, out, kRank}, 0, true);
    lora.scale = 0.5;
    matrix.lora = lora;
  }

  void draw() {
    store.allocate(at::kFloat, at::kCPU);
    const at::NoGradGuard no_grad;
    for (Parameter& parameter : store.parameters())
      parameter.master.copy_(normal(parameter.shape, ++seed_));
    store.refresh_compute();
  }

 private:
  bool dora_;
  uint64_t seed_ = 900;
};

BatchContext adapted_batch(bool adapters) {
  BatchContext batch;
  batch.cu_seqlens = {0, 7, 20};
  batch.max_seqlen = 13;
  for (uint32_t i = 0; i < 20; ++i)
    batch.token_keys.push_back({i < 7 ? 0U : 1U, i < 7 ? i : i - 7});
  const at::Tensor angle = at::rand({20, 4});
  batch.ropes = {{at::cos(angle).contiguous(), at::sin(angle).contiguous()}};
  batch.training = true;  // dropout belongs to the adapters and is off with them
  batch.adapters = adapters;
  return batch;
}

struct AdaptedKind {
  const char* name;
  bool dora = false, mixture = false, delta_net = false, per_layer = false;
};

void describe_layer(const AdaptedKind& kind, AdaptedWeights& weights, Layer& layer) {
  constexpr int64_t kHidden = AdaptedWeights::kHidden, kInner = 24;
  FeedForward& feed_forward = layer.feed_forward;
  layer.mixer_in.weight = normal({kHidden}, 1);
  feed_forward.in.weight = normal({kHidden}, 2);
  if (kind.delta_net) {
    auto made = std::make_unique<DeltaNet>();
    DeltaNet& net = *made;
    layer.mixer = std::move(made);
    net.num_key_heads = net.num_value_heads = 4;
    net.key_dim = net.value_dim = 8;
    weights.add(net.in_qkv, "in_qkv", 96, kHidden);
    weights.add(net.in_z, "in_z", 32, kHidden);
    weights.add(net.in_b, "in_b", 4, kHidden);
    weights.add(net.in_a, "in_a", 4, kHidden);
    net.conv.weight = normal({96, 4}, 3);
    net.a_log.weight = normal({4}, 4);
    net.dt_bias.weight = normal({4}, 5);
    net.norm.weight = normal({8}, 6);
  } else {
    auto made = std::make_unique<Attention>();
    made->shape = {4, 2, 8, 0.3};
    weights.add(made->q, "q", kHidden, kHidden);
    weights.add(made->k, "k", 16, kHidden);
    weights.add(made->v, "v", 16, kHidden);
    layer.mixer = std::move(made);
  }
  weights.add(layer.mixer->output, "o", kHidden, kHidden);
  if (kind.mixture) {
    Mixture& mixture = feed_forward.mixture;
    mixture.top_k = 2;
    weights.add(mixture.router, "router", 4, kHidden, /*in_fp32=*/true);
    weights.add(mixture.gate_up, "experts.gate_up", 4, 2 * kInner, kHidden);
    weights.add(mixture.down, "experts.down", 4, kHidden, kInner);
    weights.add(mixture.shared.gate, "shared.gate", kInner, kHidden);
    weights.add(mixture.shared.up, "shared.up", kInner, kHidden);
    weights.add(mixture.shared.down, "shared.down", kHidden, kInner);
    weights.add(mixture.shared.router, "shared.router", 1, kHidden);
  } else {
    weights.add(feed_forward.gate, "gate", kInner, kHidden);
    weights.add(feed_forward.up, "up", kInner, kHidden);
    weights.add(feed_forward.down, "down", kHidden, kInner);
  }
  if (kind.per_layer) {
    weights.add(layer.per_layer.gate, "per_layer.gate", 5, kHidden);
    weights.add(layer.per_layer.projection, "per_layer.projection", kHidden, 5);
  }
}

void remove_adapters(Layer& layer) {
  for (Linear* linear : layer.linears()) linear->lora.reset();
  for (ExpertMatrix* matrix : layer.experts()) matrix->lora.reset();
}

class LayersWithAdaptersOff : public ::testing::TestWithParam<AdaptedKind> {};

TEST_P(LayersWithAdaptersOff, EqualTheBaseAlone) {
  const AdaptedKind& kind = GetParam();
  AdaptedWeights weights(kind.dora), weights_of_base(kind.dora);  // equal values
  Layer layer, base;
  describe_layer(kind, weights, layer);
  describe_layer(kind, weights_of_base, base);
  weights.draw();
  weights_of_base.draw();
  remove_adapters(base);
  BatchContext on = adapted_batch(true), off = on;
  off.adapters = false;
  if (kind.per_layer) {
    on.shared_state = std::make_shared<SharedLayerState>();
    on.shared_state->per_layer = normal({20, 1, 5}, 7);
    off.shared_state = on.shared_state;
  }
  const at::Tensor x = normal({20, AdaptedWeights::kHidden}, 8);
  for (const Backend* backend : {&fused_backend(), &plain_backend()}) {
    const at::Tensor expected = backend->layer_forward(base, x, on, nullptr);
    EXPECT_TRUE(same_bits(backend->layer_forward(layer, x, off, nullptr), expected));
    EXPECT_FALSE(at::allclose(backend->layer_forward(layer, x, on, nullptr), expected));
    std::unique_ptr<LayerRun> run;  // there is nothing to train
    EXPECT_THROW(backend->layer_forward(layer, x, off, &run), std::logic_error);
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, LayersWithAdaptersOff,
                         ::testing::Values(AdaptedKind{.name = "lora"},
                                           AdaptedKind{.name = "dora", .dora = true},
                                           AdaptedKind{.name = "experts", .mixture = true},
                                           AdaptedKind{.name = "delta_net", .delta_net = true},
                                           AdaptedKind{.name = "per_layer", .per_layer = true}),
                         [](const auto& of) { return std::string(of.param.name); });

TEST(AdaptersOff, HeadsEqualTheBaseAlone) {
  for (const bool dora : {false, true}) {
    AdaptedWeights weights(dora);
    Head head;
    head.softcap = 4;
    head.norm.weight = normal({AdaptedWeights::kHidden}, 1);
    weights.add(head.linear, "lm_head", 301, AdaptedWeights::kHidden);
    weights.draw();
    Head base = head;
    base.linear.lora.reset();
    const at::Tensor hidden = normal({300, AdaptedWeights::kHidden}, 2),
                     labels = at::arange(300, at::kInt);
    BatchContext off;
    off.adapters = false;
    for (const Backend* backend : {&fused_backend(), &plain_backend()}) {
      const auto loss = [&](const Head& of, const BatchContext& rows) {
        return backend->head_loss(hidden, of, labels, 1, HeadGrad::kNone, rows).loss_sum;
      };
      EXPECT_TRUE(same_bits(loss(head, off), loss(base, {})));
      EXPECT_FALSE(at::allclose(loss(head, {}), loss(base, {})));
      EXPECT_THROW(backend->head_loss(hidden, head, labels, 1, HeadGrad::kInput, off),
                   std::logic_error);
      const at::Tensor losses = backend->label_losses(hidden, head, labels, off);
      EXPECT_TRUE(same_bits(losses, backend->label_losses(hidden, base, labels, {})));
      EXPECT_TRUE(test::close(losses.sum(at::kDouble), loss(base, {}), 1e-6));
    }
  }
}

TEST(AdaptersOff, EmbeddingsEqualTheTableAlone) {
  for (const bool quantised : {false, true}) {
    Embedding embedding;
    embedding.scale = 2.5;
    ParameterStore store;
    LoraAdapter lora;
    lora.a = store.add("lora_embedding_A", {3, 23}, 0, true);
    lora.b = store.add("lora_embedding_B", {32, 3}, 0, true);
    store.allocate(at::kFloat, at::kCPU);
    store.master().fill_(0.5);
    embedding.lora = lora;
    const at::Tensor table = normal({23, 32}, 7);
    if (quantised)
      embedding.quantized = kernels::quantize(table, {.block_size = 32});
    else
      embedding.weight = table;
    Embedding base = embedding;
    base.lora.reset();
    const at::Tensor tokens = at::tensor({3, 0, 22, 3}, at::kLong),
                     expected = embedding_forward(base, tokens, at::kFloat);
    EXPECT_TRUE(
        same_bits(embedding_forward(embedding, tokens, at::kFloat, /*adapters=*/false), expected));
    EXPECT_FALSE(at::allclose(embedding_forward(embedding, tokens, at::kFloat), expected));
  }
}

TEST(AdaptersOff, PerLayerInputsEqualTheBaseAlone) {
  AdaptedWeights weights(/*dora=*/false);
  PerLayerInputs inputs;
  inputs.table.weight = normal({23, 12}, 1);
  inputs.norm.weight = normal({6}, 2);
  weights.add(inputs.projection, "per_layer_model_projection", 12, AdaptedWeights::kHidden);
  weights.draw();
  PerLayerInputs base = inputs;
  base.projection.lora.reset();
  const at::Tensor tokens = at::arange(20, at::kLong),
                   embedded = normal({20, AdaptedWeights::kHidden}, 3);
  BatchContext on = adapted_batch(true), off = on;
  off.adapters = false;
  const at::Tensor expected = per_layer_forward(base, tokens, embedded, on, nullptr);
  EXPECT_TRUE(same_bits(per_layer_forward(inputs, tokens, embedded, off, nullptr), expected));
  EXPECT_FALSE(at::allclose(per_layer_forward(inputs, tokens, embedded, on, nullptr), expected));
}

TEST(AdaptersOff, RowsOfABatchKnowIt) {
  BatchContext batch = adapted_batch(false);
  const at::Tensor rows = at::arange(3, at::kLong);
  for (const bool training : {false, true}) {
    batch.training = training;
    EXPECT_FALSE(dropout_rows(batch, rows).adapters);
    EXPECT_FALSE(dropout_rows(batch, 1, 2).adapters);
  }
  batch.adapters = true;
  EXPECT_TRUE(dropout_rows(batch, rows).adapters);
}

}  // namespace
}  // namespace sftrun::layers
