#include "cudnn_attention.h"

#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_cudnn_attention_backward.h>
#include <ATen/ops/_cudnn_attention_forward.h>
#include <fmt/format.h>

#include "sftrun/core/error.h"
#include "sftrun/kernels/cuda_device.h"

namespace sftrun::kernels {
namespace {

/// The backward pass of cuDNN 9.12 returned NaN on an H100 (NVIDIA/cudnn-frontend issue 160).
constexpr int64_t kOldestCudnn = 91500;
constexpr int kHopper = 90, kBlackwell = 100, kAfterBlackwell = 110;
/// The backward pass on Hopper returns NaN for some masked tiles that a document does not fill
/// (pytorch/pytorch issue 196678, cudnn-frontend pull request 628): only whole tiles are allowed.
constexpr int64_t kLengthStep = 128;
/// With kAuto: forward and backward, cuDNN's kernel took 0.55 to 0.63 of FlashAttention's time on an
/// H100 at 2048 to 32768 tokens, and 0.75 to 0.83 at 128, where a trial costs more than it gains
/// (docs/attention.md).
constexpr int64_t kMinLengthForAuto = 1024;
constexpr int64_t kHeadStep = 8, kMaxHeadDim = 128, kMaxHeadDimOnHopper = 256;

/// [T, heads * head_dim] as [documents, heads, length, head_dim], without a copy.
at::Tensor by_document(const at::Tensor& x, const EqualDocuments& documents, int64_t head_dim) {
  return x.view({documents.count, documents.length, x.size(1) / head_dim, head_dim})
      .transpose(1, 2);
}
/// The inverse; the backward pass needs no copy, as LibTorch gives results the layout of operands.
at::Tensor by_token(const at::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0) * x.size(2), x.size(1) * x.size(3)});
}

/// "9.15.0" for 91500.
std::string version_words(int64_t version) {
  constexpr int64_t kMajor = 10'000, kMinor = 100;
  return fmt::format("{}.{}.{}", version / kMajor, version % kMajor / kMinor, version % kMinor);
}

}  // namespace

EqualDocuments equal_documents(const std::vector<int32_t>& cu_seqlens) {
  if (cu_seqlens.size() < 2) return {};
  const int32_t length = cu_seqlens[1] - cu_seqlens[0];
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i)
    if (cu_seqlens[i + 1] - cu_seqlens[i] != length) return {};
  if (length == 0) return {};
  return {static_cast<int64_t>(cu_seqlens.size()) - 1, length};
}

CudnnCard cudnn_card(at::Device device) {
  const at::CUDAHooksInterface& hooks = at::detail::getCUDAHooks();
  return {compute_capability(device), hooks.hasCuDNN() ? hooks.versionRuntimeCuDNN() : 0};
}

// Conditions of can_use_cudnn_attention in LibTorch's
// aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, and stricter: only GPUs and lengths for
// which it is PyTorch's own first choice.
std::string why_not_cudnn(const AttentionShape& shape, at::ScalarType dtype,
                          const EqualDocuments& documents, const CudnnCard& card) {
  if (card.compute_capability != kHopper &&
      (card.compute_capability < kBlackwell || card.compute_capability >= kAfterBlackwell))
    return fmt::format("the GPU is sm_{}, not sm_90 or sm_100", card.compute_capability);
  if (shape.on_cuda == CudaAttention::kAuto && card.compute_capability != kHopper)
    return fmt::format("it was not measured on sm_{}", card.compute_capability);
  if (card.cudnn_version < kOldestCudnn)
    return fmt::format("cuDNN {} is older than {}", version_words(card.cudnn_version),
                       version_words(kOldestCudnn));
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return "only bf16 and fp16 are supported";
  if (shape.softcap > 0) return "attention scores have a soft cap";
  const int64_t most = card.compute_capability == kHopper ? kMaxHeadDimOnHopper : kMaxHeadDim;
  if (shape.head_dim % kHeadStep != 0 || shape.head_dim > most)
    return fmt::format("heads have {} channels", shape.head_dim);
  if (documents.count == 0) return "the documents of a micro-batch have different lengths";
  if (shape.on_cuda == CudaAttention::kAuto && documents.length < kMinLengthForAuto)
    return fmt::format("the documents are shorter than {} tokens", kMinLengthForAuto);
  if (documents.length % kLengthStep != 0)
    return fmt::format("the documents' length is not a multiple of {}", kLengthStep);
  if (shape.window > 0 && shape.window < documents.length)
    return "the layer has a sliding window shorter than the documents";
  return {};
}

AttentionOutput cudnn_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const BatchMetadata& batch,
                                        const AttentionShape& s) {
  const EqualDocuments documents = equal_documents(batch.cu_seqlens);
  SFTRUN_CHECK(documents.count > 0);
  const auto split = [&](const at::Tensor& x) { return by_document(x, documents, s.head_dim); };
  const auto [out, lse, ends_q, ends_k, max_q, max_k, seed, offset, mask] =
      at::_cudnn_attention_forward(split(q), split(k), split(v), /*attn_bias=*/std::nullopt,
                                   /*cum_seq_q=*/std::nullopt, /*cum_seq_k=*/std::nullopt,
                                   documents.length, documents.length, /*compute_log_sumexp=*/true,
                                   /*dropout_p=*/0.0, /*is_causal=*/true,
                                   /*return_debug_mask=*/false, s.scale);
  return {by_token(out), {lse, seed, offset}, /*by_cudnn=*/true};
}

AttentionGrads cudnn_attention_backward(const at::Tensor& d_out, const at::Tensor& q,
                                        const at::Tensor& k, const at::Tensor& v,
                                        const AttentionOutput& saved, const BatchMetadata& batch,
                                        const AttentionShape& s) {
  const EqualDocuments documents = equal_documents(batch.cu_seqlens);
  SFTRUN_CHECK(documents.count > 0);
  const auto split = [&](const at::Tensor& x) { return by_document(x, documents, s.head_dim); };
  // LibTorch caches plans by the strides of q, k and v only, so d_out and out must have the same
  // strides in every call.
  auto [dq, dk, dv] = at::_cudnn_attention_backward(
      split(d_out.contiguous()), split(q), split(k), split(v), split(saved.out.contiguous()),
      saved.lse[0], saved.lse[1], saved.lse[2], /*attn_bias=*/at::Tensor(),
      /*cum_seq_q=*/at::Tensor(),
      /*cum_seq_k=*/at::Tensor(), documents.length, documents.length, /*dropout_p=*/0.0,
      /*is_causal=*/true, s.scale);
  return {by_token(dq), by_token(dk), by_token(dv)};
}

}  // namespace sftrun::kernels
