#include "sftrun/layers/embedding.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "sftrun/layers/dora.h"
#include "support/tensors.h"

namespace sftrun::layers {
namespace {

using test::close;
using test::normal;

// Whether the table trains, or its update, with magnitudes; over four bits; dtype
struct EmbeddingCase {
  const char* name;
  bool trains_table = false, adapts = true, dora = false, quantised = false;
  at::ScalarType dtype = at::kFloat;
};

struct EmbeddingUnderTest {
  static constexpr int64_t kVocab = 23, kHidden = 12, kRank = 3;
  ParameterStore store;
  Embedding embedding;

  explicit EmbeddingUnderTest(const EmbeddingCase& c) {
    const at::NoGradGuard no_grad;
    embedding.scale = 3.5;
    if (c.trains_table) embedding.parameter = store.add("table", {kVocab, kHidden}, 0, true);
    if (c.adapts) declare_update(c.dora);
    store.allocate(c.dtype, at::kCPU);
    uint64_t seed = 20;
    for (Parameter& parameter : store.parameters())
      parameter.master.copy_(normal(parameter.shape, ++seed));
    store.refresh_compute();
    const at::Tensor table = normal({kVocab, kHidden}, 7);
    if (c.quantised)
      embedding.quantized = kernels::quantize(table, {.block_size = 32});
    else
      embedding.weight = c.trains_table ? embedding.parameter->compute : table.to(c.dtype);
    if (c.dora) embedding.lora->squares = column_squares(embedding);
  }

  /// peft's lora.Embedding and DoraEmbeddingLayer, under autograd.
  at::Tensor reference(const at::Tensor& tokens) const {
    const at::Tensor table =
        embedding.parameter ? embedding.parameter->master : embedding.matrix().values(at::kFloat);
    at::Tensor sum = table.to(at::kFloat).index_select(0, tokens);
    if (!embedding.lora) return sum * embedding.scale;
    const LoraAdapter& lora = *embedding.lora;
    const at::Tensor &a = lora.a->master, &b = lora.b->master;
    sum = sum + lora.scale * at::mm(a.t().index_select(0, tokens), b.t());
    if (!lora.magnitude) return sum * embedding.scale;
    const at::Tensor whole = table.detach() + lora.scale * at::mm(b, a).t().detach();
    return lora.magnitude->master / whole.norm(2, 0) * sum * embedding.scale;
  }

 private:
  void declare_update(bool dora) {
    LoraAdapter lora;
    lora.a = store.add("lora_embedding_A", {kRank, kVocab}, 0, true);
    lora.b = store.add("lora_embedding_B", {kHidden, kRank}, 0, true);
    if (dora) lora.magnitude = store.add("lora_magnitude_vector", {kHidden}, 0, true);
    lora.scale = 1.5;
    embedding.lora = lora;
  }
};

class Embeddings : public ::testing::TestWithParam<EmbeddingCase> {};

TEST_P(Embeddings, EqualPeftsAndItsGradients) {
  const EmbeddingCase& c = GetParam();
  const double tolerance = c.dtype == at::kFloat ? 1e-5 : 3e-2;
  EmbeddingUnderTest test(c);
  const at::Tensor tokens = at::tensor({3, 0, 22, 3, 7, 7, 3}, at::kLong),
                   dy = normal({7, EmbeddingUnderTest::kHidden}, 9);
  const at::Tensor expected = test.reference(tokens);
  torch::autograd::backward({expected}, {dy});
  const at::Tensor expected_grads = test.store.grad().clone();
  test.store.zero_grad();
  const at::Tensor y = embedding_forward(test.embedding, tokens, c.dtype);
  EXPECT_EQ(y.scalar_type(), c.dtype);
  EXPECT_TRUE(close(y, expected, tolerance));
  embedding_backward(test.embedding, tokens, dy.to(c.dtype));
  for (const Parameter& parameter : test.store.parameters()) {
    const at::Tensor of =
        expected_grads.narrow(0, parameter.offset, parameter.numel).view(parameter.shape);
    EXPECT_TRUE(close(parameter.grad, of, tolerance)) << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Embeddings,
    ::testing::Values(EmbeddingCase{.name = "table", .trains_table = true, .adapts = false},
                      EmbeddingCase{.name = "lora"}, EmbeddingCase{.name = "dora", .dora = true},
                      EmbeddingCase{.name = "lora_nf4", .quantised = true},
                      EmbeddingCase{.name = "dora_nf4", .dora = true, .quantised = true},
                      EmbeddingCase{.name = "lora_bf16", .dtype = at::kBFloat16},
                      EmbeddingCase{.name = "dora_bf16", .dora = true, .dtype = at::kBFloat16}),
    [](const auto& of) { return std::string(of.param.name); });

TEST(Embeddings, LengthsAreThoseOfTheSumsColumns) {
  const at::NoGradGuard no_grad;
  for (const bool quantised : {false, true}) {
    EmbeddingUnderTest test({.name = "", .dora = true, .quantised = quantised});
    const LoraAdapter& lora = *test.embedding.lora;
    const at::Tensor whole = test.embedding.matrix().values(at::kFloat) +
                             lora.scale * at::mm(lora.b->master, lora.a->master).t();
    EXPECT_TRUE(close(column_lengths(test.embedding), whole.norm(2, 0), 2e-6));
  }
}

}  // namespace
}  // namespace sftrun::layers
