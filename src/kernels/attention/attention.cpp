#include <ATen/ATen.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "attention_choice.h"
#include "both_ways.h"
#include "composed_attention.h"
#include "cuda_attention.h"
#include "cudnn_attention.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/cuda_device.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"
#include "tiled_attention.h"

namespace sftrun::kernels {
namespace {

/// Rows [begin, end) of x [T, heads * head_dim] as [1, heads, S, head_dim], without a copy.
at::Tensor document_view(const at::Tensor& x, int64_t begin, int64_t end, int64_t head_dim) {
  const int64_t heads = x.size(1) / head_dim;
  return x.narrow(0, begin, end - begin).view({1, end - begin, heads, head_dim}).transpose(1, 2);
}

at::Tensor flat(const at::Tensor& x, int64_t heads, int64_t head_dim) {
  return x.reshape({-1, heads * head_dim});
}

/// FlashAttention on CUDA requires fp16 or bf16 and a head_dim that is a multiple of 8 and at most
/// 256; LibTorch's interface to it has no soft cap.
bool flash_serves(at::ScalarType dtype, const AttentionShape& shape) {
  constexpr int64_t kMaxFlashDepth = 256, kFlashDepthStep = 8;
  return shape.softcap <= 0 && dtype != at::kFloat && shape.head_dim <= kMaxFlashDepth &&
         shape.head_dim % kFlashDepthStep == 0;
}

/// Whether every document is one span that is seen both ways: attention needs no mask.
bool sees_whole_documents(const BatchMetadata& batch, const AttentionShape& shape) {
  const std::vector<RowSpan>& spans = batch.both_ways;
  if (shape.window > 0 || spans.size() + 1 != batch.cu_seqlens.size()) return false;
  for (size_t i = 0; i < spans.size(); ++i)
    if (spans[i].first != batch.cu_seqlens[i] || spans[i].end != batch.cu_seqlens[i + 1])
      return false;
  return true;
}

/// Whether FlashAttention or cuDNN attention runs on CUDA. Neither has a mask for spans that are seen
/// both ways within longer documents.
bool takes_libraries(const at::Tensor& q, const BatchMetadata& batch, const AttentionShape& shape) {
  return flash_serves(q.scalar_type(), shape) &&
         flash_runs_backward(shape.head_dim, compute_capability(q.device())) &&
         (!sees_both_ways(batch, shape) || sees_whole_documents(batch, shape));
}

/// Whether no kernel supports the shape. Own CUDA kernels support nearly all that FlashAttention
/// does not; LibTorch's CPU kernel is causal and supports neither windows nor soft caps.
bool must_compose(const at::Tensor& q, const BatchMetadata& batch, const AttentionShape& shape) {
  const bool both_ways = sees_both_ways(batch, shape);
  if (q.is_cuda())
    return !takes_libraries(q, batch, shape) && !cuda_attention_serves(shape, both_ways);
  return !tiled_attention_serves(q.scalar_type(), shape) &&
         (shape.softcap > 0 || shape.window > 0 || both_ways);
}

/// [heads, T] or [1, heads, S] -> [T, heads, 1].
at::Tensor beside_heads(const at::Tensor& lse) {
  return (lse.dim() == 3 ? lse.squeeze(0) : lse).transpose(0, 1).unsqueeze(-1);
}

at::Tensor heads_apart(const at::Tensor& x, const at::Tensor& sinks) {
  return x.view({x.size(0), sinks.numel(), -1});
}

/// Calls body(first row in the batch, lse) for each log-sum-exp tensor in `saved.lse`.
template <typename Body>
void for_each_lse(AttentionOutput& saved, int64_t num_tokens, Body&& body) {
  int64_t begin = 0;
  for (at::Tensor& lse : saved.lse) {
    if (begin == num_tokens) break;  // the rest is FlashAttention's random state
    body(begin, lse);
    begin += lse.size(-1);
  }
}

/// A sink enlarges the softmax denominator: outputs are multiplied by sigmoid(lse - sink).
void add_sinks_(AttentionOutput& attention, const at::Tensor& sinks) {
  const at::Tensor scores = sinks.to(at::kFloat).unsqueeze(-1);
  for_each_lse(attention, attention.out.size(0), [&](int64_t begin, at::Tensor& lse) {
    at::Tensor out = heads_apart(attention.out.narrow(0, begin, lse.size(-1)), sinks);
    out.copy_(out.to(at::kFloat) * beside_heads(at::sigmoid(lse - scores)));
    lse = at::logaddexp(lse, scores);
  });
}

/// Window of visible keys around the query's own, as FlashAttention's arguments.
struct Window {
  std::optional<int64_t> left, right;
};
Window window_of(const AttentionShape& shape) {
  return shape.window == 0 ? Window{} : Window{shape.window - 1, 0};
}

AttentionOutput forward_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const BatchMetadata& batch, const AttentionShape& s) {
  const auto heads_of = [&](const at::Tensor& x) {
    return x.view({x.size(0), x.size(1) / s.head_dim, s.head_dim});
  };
  const Window window = window_of(s);
  auto [out, lse, rng, unused, mask] = at::_flash_attention_forward(
      heads_of(q), heads_of(k), heads_of(v), batch.cu_seqlens_device, batch.cu_seqlens_device,
      batch.max_seqlen, batch.max_seqlen, /*dropout_p=*/0.0,
      /*is_causal=*/!sees_both_ways(batch, s),
      /*return_debug_mask=*/false, s.scale, window.left, window.right);
  return {flat(out, s.num_heads, s.head_dim), {lse, rng, unused}};
}

AttentionGrads backward_cuda(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const AttentionOutput& saved,
                             const BatchMetadata& batch, const AttentionShape& s) {
  const auto heads_of = [&](const at::Tensor& x) {
    return x.view({x.size(0), x.size(1) / s.head_dim, s.head_dim});
  };
  const Window window = window_of(s);
  auto [dq, dk, dv] = at::_flash_attention_backward(
      heads_of(d_out), heads_of(q), heads_of(k), heads_of(v), heads_of(saved.out), saved.lse[0],
      batch.cu_seqlens_device, batch.cu_seqlens_device, batch.max_seqlen, batch.max_seqlen, 0.0,
      !sees_both_ways(batch, s), saved.lse[1], saved.lse[2], s.scale, window.left, window.right);
  return {flat(dq, s.num_heads, s.head_dim), flat(dk, s.num_kv_heads, s.head_dim),
          flat(dv, s.num_kv_heads, s.head_dim)};
}

AttentionOutput attention_without_sinks(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const BatchMetadata& batch,
                                        const AttentionShape& shape) {
  if (must_compose(q, batch, shape)) return composed_attention_forward(q, k, v, batch, shape);
  if (q.is_cuda() && !takes_libraries(q, batch, shape))
    return cuda_attention_forward(q, k, v, batch, shape);
  if (q.is_cuda()) {
    return !sees_both_ways(batch, shape) &&
                   takes_cudnn(q, k, v, batch, shape, {forward_cuda, backward_cuda})
               ? cudnn_attention_forward(q, k, v, batch, shape)
               : forward_cuda(q, k, v, batch, shape);
  }
  if (tiled_attention_serves(q.scalar_type(), shape))
    return tiled_attention_forward(q, k, v, batch, shape);
  AttentionOutput result;
  result.out = at::empty_like(q);
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    const int64_t begin = batch.cu_seqlens[i], end = batch.cu_seqlens[i + 1];
    SFTRUN_CHECK(begin < end);  // ATen divides by the length
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        document_view(q, begin, end, shape.head_dim), document_view(k, begin, end, shape.head_dim),
        document_view(v, begin, end, shape.head_dim), 0.0, /*is_causal=*/true, std::nullopt,
        shape.scale);
    document_view(result.out, begin, end, shape.head_dim).copy_(out);
    result.lse.push_back(lse);
  }
  return result;
}

}  // namespace

bool attention_is_static(at::ScalarType dtype, const AttentionShape& shape) {
  if (flash_serves(dtype, shape))
    return shape.on_cuda == CudaAttention::kFlash || shape.on_cuda == CudaAttention::kAuto;
  return cuda_attention_serves(shape, /*both_ways=*/false);
}

AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const BatchMetadata& batch, const AttentionShape& shape,
                                  const at::Tensor& sinks) {
  const ProfileRange range("attention_forward");
  if (sees_both_ways(batch, shape)) require_spans(batch);
  if (!sinks.defined()) return attention_without_sinks(q, k, v, batch, shape);
  AttentionShape with_lse = shape;  // sinks need an lse of shape [heads, T]
  with_lse.on_cuda = CudaAttention::kFlash;
  AttentionOutput result = attention_without_sinks(q, k, v, batch, with_lse);
  add_sinks_(result, sinks);
  return result;
}

// The probability of a sink is exp(sink - lse); its value is 0.
at::Tensor attention_sinks_grad(const at::Tensor& d_out, const AttentionOutput& saved,
                                const at::Tensor& sinks) {
  const at::Tensor delta =
      (heads_apart(d_out, sinks).to(at::kFloat) * heads_apart(saved.out, sinks).to(at::kFloat))
          .sum(-1);  // [T, heads]
  at::Tensor grad = at::zeros({sinks.numel()}, delta.options());
  AttentionOutput output = saved;
  for_each_lse(output, d_out.size(0), [&](int64_t begin, const at::Tensor& lse) {
    const at::Tensor share = at::exp(sinks.to(at::kFloat) - beside_heads(lse).squeeze(-1));
    grad.sub_((share * delta.narrow(0, begin, lse.size(-1))).sum(0));
  });
  return grad;
}

AttentionGrads attention_backward(const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const AttentionOutput& saved,
                                  const BatchMetadata& batch, const AttentionShape& shape) {
  const ProfileRange range("attention_backward");
  if (saved.by_cudnn) return cudnn_attention_backward(d_out, q, k, v, saved, batch, shape);
  if (must_compose(q, batch, shape))
    return composed_attention_backward(d_out, q, k, v, saved, batch, shape);
  if (q.is_cuda() && !takes_libraries(q, batch, shape))
    return cuda_attention_backward(d_out, q, k, v, saved, batch, shape);
  if (q.is_cuda()) return backward_cuda(d_out, q, k, v, saved, batch, shape);
  if (tiled_attention_serves(q.scalar_type(), shape))
    return tiled_attention_backward(d_out, q, k, v, saved, batch, shape);
  AttentionGrads grads{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    const int64_t begin = batch.cu_seqlens[i], end = batch.cu_seqlens[i + 1];
    const auto view = [&](const at::Tensor& x) {
      return document_view(x, begin, end, shape.head_dim);
    };
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        view(d_out), view(q), view(k), view(v), view(saved.out), saved.lse[i], 0.0, true,
        std::nullopt, shape.scale);
    view(grads.dq).copy_(dq);
    view(grads.dk).copy_(dk);
    view(grads.dv).copy_(dv);
  }
  return grads;
}

}  // namespace sftrun::kernels
