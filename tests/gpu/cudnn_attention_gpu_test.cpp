#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "../../src/kernels/attention/cudnn_attention.h"
#include "support.h"
#include "support/tensors.h"

/// Attention by cuDNN's kernel beside the CPU's and FlashAttention's.
namespace sftrun::kernels {
namespace {

using test::close;
using test::normal;

using test::kCard;
constexpr double kTolerance = 2e-2;  // of the largest value, in bf16

BatchMetadata batch_of(const std::vector<int32_t>& ends) {
  BatchMetadata batch;
  batch.cu_seqlens = ends;
  for (size_t i = 0; i + 1 < ends.size(); ++i)
    batch.max_seqlen = std::max(batch.max_seqlen, ends[i + 1] - ends[i]);
  batch.cu_seqlens_device = at::tensor(ends, at::kInt).to(kCard);
  return batch;
}

struct Operands {
  Operands(const AttentionShape& shape, int64_t tokens, at::ScalarType dtype = at::kBFloat16)
      : q(normal({tokens, shape.num_heads * shape.head_dim}, 1, dtype)),
        k(normal({tokens, shape.num_kv_heads * shape.head_dim}, 2, dtype)),
        v(normal({tokens, shape.num_kv_heads * shape.head_dim}, 3, dtype)),
        d_out(normal({tokens, shape.num_heads * shape.head_dim}, 4, dtype)) {}

  Operands on_card() const {
    Operands moved = *this;
    for (at::Tensor* x : {&moved.q, &moved.k, &moved.v, &moved.d_out}) *x = x->to(kCard);
    return moved;
  }
  at::Tensor q, k, v, d_out;
};

struct Results {
  bool by_cudnn = false;
  std::vector<at::Tensor> all;
};
Results attend(const Operands& x, const BatchMetadata& batch, const AttentionShape& shape) {
  const at::NoGradGuard no_grad;
  const AttentionOutput out = attention_forward(x.q, x.k, x.v, batch, shape);
  const AttentionGrads grads = attention_backward(x.d_out, x.q, x.k, x.v, out, batch, shape);
  return {out.by_cudnn, {out.out, grads.dq, grads.dk, grads.dv}};
}

AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim, CudaAttention on_cuda) {
  return {.num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1 / std::sqrt(static_cast<double>(head_dim)),
          .on_cuda = on_cuda};
}

bool serves(const AttentionShape& shape, const BatchMetadata& batch) {
  return why_not_cudnn(shape, at::kBFloat16, equal_documents(batch.cu_seqlens), cudnn_card(kCard))
      .empty();
}

TEST(CudnnAttentionGpu, ResultsAreTheCpus) {
  for (const std::vector<int32_t>& ends :
       {std::vector<int32_t>{0, 128}, {0, 384}, {0, 128, 256, 384}}) {
    for (const auto& [heads, kv_heads, head_dim] :
         {std::tuple(4, 2, 64), {3, 3, 32}, {8, 1, 128}, {2, 1, 256}}) {
      const AttentionShape shape = shape_of(heads, kv_heads, head_dim, CudaAttention::kCudnn);
      const BatchMetadata batch = batch_of(ends);
      const Operands here(shape, ends.back());
      const Results expected = attend(here, batch, shape),
                    found = attend(here.on_card(), batch, shape);
      EXPECT_EQ(found.by_cudnn, serves(shape, batch))
          << ends.size() - 1 << " documents, heads of " << head_dim;
      EXPECT_FALSE(expected.by_cudnn);
      for (size_t i = 0; i < expected.all.size(); ++i)
        EXPECT_TRUE(close(found.all[i].cpu(), expected.all[i], kTolerance)) << "result " << i;
    }
  }
}

/// As they lie in a matrix of queries, keys and values; and a gradient of other strides than the
/// first one of the shape.
TEST(CudnnAttentionGpu, OperandsOfOneMatrix) {
  const AttentionShape shape = shape_of(4, 2, 64, CudaAttention::kCudnn);
  const BatchMetadata batch = batch_of({0, 256, 512});
  const Operands here(shape, 512);
  const Results expected = attend(here, batch, shape);
  Operands there = here.on_card();
  const at::Tensor joined = at::cat({there.q, there.k, there.v, there.d_out}, 1);
  const auto columns = [&](int64_t begin, const at::Tensor& like) {
    return joined.narrow(1, begin, like.size(1));
  };
  there.k = columns(256, there.k), there.v = columns(384, there.v);
  there.q = columns(0, there.q);
  for (const bool is_strided : {false, true}) {
    if (is_strided) there.d_out = columns(512, there.d_out);
    const Results found = attend(there, batch, shape);
    EXPECT_EQ(found.by_cudnn, serves(shape, batch));
    for (size_t i = 0; i < expected.all.size(); ++i)
      EXPECT_TRUE(close(found.all[i].cpu(), expected.all[i], kTolerance)) << "result " << i;
  }
}

TEST(CudnnAttentionGpu, OtherBatchesAreFlashAttentions) {
  const Operands here(shape_of(4, 2, 64, CudaAttention::kCudnn), 512);
  const auto found = [&](const std::vector<int32_t>& ends, int64_t window, CudaAttention on_cuda) {
    AttentionShape shape = shape_of(4, 2, 64, on_cuda);
    shape.window = window;
    return attend(here.on_card(), batch_of(ends), shape);
  };
  const std::vector<std::pair<std::vector<int32_t>, int64_t>> others = {{{0, 128, 512}, 0},
                                                                        {{0, 512}, 100}};
  for (const auto& [ends, window] : others) {
    const Results by_flash = found(ends, window, CudaAttention::kFlash),
                  by_choice = found(ends, window, CudaAttention::kCudnn);
    EXPECT_FALSE(by_choice.by_cudnn);
    EXPECT_TRUE(at::equal(by_choice.all[0], by_flash.all[0]));
  }
}

TEST(CudnnAttentionGpu, MeasureStaysWithItsChoice) {
  const AttentionShape shape = shape_of(4, 4, 64, CudaAttention::kMeasure);
  const BatchMetadata batch = batch_of({0, 128, 256});
  const Operands here(shape, 256);
  const Results expected = attend(here, batch, shape), first = attend(here.on_card(), batch, shape),
                second = attend(here.on_card(), batch, shape);
  EXPECT_EQ(first.by_cudnn, second.by_cudnn);
  for (size_t i = 0; i < expected.all.size(); ++i)
    EXPECT_TRUE(close(first.all[i].cpu(), expected.all[i], kTolerance)) << "result " << i;
}

/// Sinks are added to FlashAttention's log-sum-exp.
TEST(CudnnAttentionGpu, SinksAreFlashAttentions) {
  const at::NoGradGuard no_grad;
  const AttentionShape shape = shape_of(4, 4, 64, CudaAttention::kCudnn);
  const BatchMetadata batch = batch_of({0, 128});
  const Operands x = Operands(shape, 128).on_card();
  const at::Tensor sinks = normal({4}, 5, at::kBFloat16).to(kCard);
  EXPECT_FALSE(attention_forward(x.q, x.k, x.v, batch, shape, sinks).by_cudnn);
}

}  // namespace
}  // namespace sftrun::kernels
