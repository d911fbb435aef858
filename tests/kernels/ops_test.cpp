#include "sftrun/kernels/ops.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "sftrun/kernels/functions.h"
#include "sftrun/kernels/memory.h"
#include "support/tensors.h"

namespace sftrun::kernels {
namespace {

using test::close;
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
  batch.cos = at::cos(angle).contiguous();
  batch.sin = at::sin(angle).contiguous();
  batch.training = true;
  return batch;
}

struct AttentionCase {
  int64_t heads, kv_heads, head_dim;
  std::vector<int32_t> lengths;
  at::ScalarType dtype;
};

class Attention : public ::testing::TestWithParam<AttentionCase> {};

// Against softmax(q k^T) v written out in fp64, document by document.
TEST_P(Attention, ForwardAndBackward) {
  const AttentionCase& c = GetParam();
  const BatchContext batch = batch_of(c.lengths, c.head_dim);
  const AttentionShape shape{c.heads, c.kv_heads, c.head_dim,
                             1 / std::sqrt(static_cast<double>(c.head_dim))};
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
    const at::Tensor masked = at::ones({length, length}, at::kBool).triu(1);
    const at::Tensor scores =
        (at::matmul(heads_of(q64, c.heads), heads_of(k64, c.kv_heads).transpose(1, 2)) *
         shape.scale)
            .masked_fill(masked, -INFINITY);
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
                      AttentionCase{1, 1, 256, {70}, at::kFloat}),
    [](const auto& param_info) {
      const AttentionCase& c = param_info.param;
      return std::to_string(c.heads) + "_" + std::to_string(c.kv_heads) + "_heads_of_" +
             std::to_string(c.head_dim) + "_" + c10::toString(c.dtype);
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

TEST(Matmul, EveryShapeAgreesWithLibTorch) {
  for (const int64_t rows : {1, 8, 33, 100}) {
    for (const int64_t columns : {1, 8, 64, 129}) {
      for (const int64_t depth : {1, 16, 64, 300}) {
        const at::Tensor x = normal({rows, depth}, 1), w = normal({columns, depth}, 2),
                         g = normal({rows, columns}, 3);
        const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
        EXPECT_TRUE(close(matmul_nt(x, w), at::mm(wide(x), wide(w).t()), 1e-5));
        EXPECT_TRUE(close(matmul_nn(g, w), at::mm(wide(g), wide(w)), 1e-5));
        EXPECT_TRUE(close(matmul_tn(g, x), at::mm(wide(g).t(), wide(x)), 1e-5));
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

/// A linear layer with everything: bias, adapter, dropout, trained weight.
struct LinearUnderTest {
  ParameterStore store;
  Linear linear;
  explicit LinearUnderTest(bool trains_weight) {
    linear.name = "l";
    if (trains_weight) {
      linear.weight_parameter = store.add("w", {24, 40}, 0, true);
      linear.bias_parameter = store.add("b", {24}, 0, false);
    }
    LoraAdapter lora;
    lora.a = store.add("a", {4, 40}, 0, true);
    lora.b = store.add("bb", {24, 4}, 0, true);
    lora.scale = 1.5;
    lora.dropout = 0.2;
    lora.module_number = 9;
    linear.lora = lora;
    store.allocate(at::kFloat, at::kCPU);
    const at::NoGradGuard no_grad;
    uint64_t seed = 50;
    for (Parameter& parameter : store.parameters())
      parameter.master.copy_(normal(parameter.shape, ++seed));
    linear.weight = trains_weight ? linear.weight_parameter->compute : normal({24, 40}, 60);
    linear.bias = trains_weight ? linear.bias_parameter->compute : normal({24}, 61);
  }
};

class FusedAndPlain : public ::testing::TestWithParam<bool> {};

TEST_P(FusedAndPlain, LinearsGiveTheSameValuesAndGradients) {
  BatchContext batch = batch_of({10, 7}, 8);
  const at::Tensor x = normal({17, 40}, 70), dy = normal({17, 24}, 71);
  std::vector<at::Tensor> outputs, dx, flat_grads;
  for (const BlockOps* ops : {&fused_ops(), &plain_ops()}) {
    LinearUnderTest test(GetParam());
    const at::Tensor input = x.clone().requires_grad_();
    const at::Tensor y = ops->linears(input, {&test.linear}, batch)[0];
    torch::autograd::backward({y}, {dy});
    outputs.push_back(y.detach());
    dx.push_back(input.grad());
    flat_grads.push_back(test.store.grad().clone());
  }
  EXPECT_TRUE(close(outputs[0], outputs[1], 1e-5));
  EXPECT_TRUE(close(dx[0], dx[1], 1e-5));
  EXPECT_TRUE(close(flat_grads[0], flat_grads[1], 1e-5));
  EXPECT_GT(flat_grads[0].abs().max().item<double>(), 0.1);
}
INSTANTIATE_TEST_SUITE_P(TrainsWeight, FusedAndPlain, ::testing::Bool());

TEST(HeadLoss, EqualsCrossEntropyAndItsGradients) {
  ParameterStore store;
  Linear head;
  head.weight_parameter = store.add("lm_head.weight", {301, 32}, 0, true);
  store.allocate(at::kFloat, at::kCPU);
  {
    const at::NoGradGuard no_grad;
    head.weight_parameter->master.copy_(normal({301, 32}, 80));
  }
  head.weight = head.weight_parameter->compute;
  const at::Tensor hidden = normal({150, 32}, 81), labels = at::arange(150, at::kInt) * 2;
  const HeadLoss fused = head_loss(hidden, head, labels, 0.01, true);
  const at::Tensor fused_weight_grad = store.grad().clone();
  store.zero_grad();
  const HeadLoss plain = head_loss_plain(hidden, head, labels, 0.01, true);
  EXPECT_NEAR(fused.loss_sum / plain.loss_sum, 1, 1e-6);
  EXPECT_TRUE(close(fused.grad_hidden, plain.grad_hidden, 1e-5));
  EXPECT_TRUE(close(fused_weight_grad, store.grad(), 1e-5));
  EXPECT_NEAR(head_loss(hidden, head, labels, 1, false).loss_sum / plain.loss_sum, 1, 1e-6);
}

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
  trim_cpu_cache();
  EXPECT_EQ(cpu_memory_stats().cached_bytes, 0U);
}

}  // namespace
}  // namespace sftrun::kernels
