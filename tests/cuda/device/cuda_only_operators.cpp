// Operators that LibTorch has on CUDA alone, or whose CUDA kernels refuse what the CPU's take: by
// plain operators in fp32, with the checks of CUDA's kernels. They get tensors of the host.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "memory.h"
#include "operators.h"

namespace host_backed {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalInt = std::optional<int64_t>;

/// What a query of one document does not see. [queries, keys], true where hidden.
Tensor hidden(int64_t length, bool is_causal, OptionalInt left, OptionalInt right) {
  const Tensor row = at::arange(length).unsqueeze(1), column = at::arange(length).unsqueeze(0);
  Tensor mask = at::zeros({length, length}, at::kBool);
  if (is_causal) right = 0;
  if (right && *right >= 0) mask = mask | (column > row + *right);
  if (left && *left >= 0) mask = mask | (column < row - *left);
  return mask;
}

/// As check_flash_attention_… of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
void check_flash(const Tensor& q, const Tensor& k) {
  constexpr int64_t kMaxChannels = 256, kChannelStep = 8;
  TORCH_CHECK(q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16,
              "FlashAttention only supports fp16 and bf16");
  TORCH_CHECK(q.dim() == 3 && q.size(2) % kChannelStep == 0 && q.size(2) <= kMaxChannels &&
                  q.stride(2) == 1 && k.stride(2) == 1,
              "FlashAttention of heads of ", q.size(2), " channels");
  TORCH_CHECK(q.size(1) % k.size(1) == 0);
  TORCH_CHECK(compute_capability() >= 80, "FlashAttention only supports Ampere GPUs or newer");
}

/// One document's rows [begin, end) of x [T, heads, channels] as fp32 [heads, rows, channels], with
/// keys repeated for the queries' heads.
Tensor heads_first(const Tensor& x, int64_t begin, int64_t end, int64_t heads) {
  const Tensor part = x.slice(0, begin, end).to(at::kFloat).transpose(0, 1);
  return part.repeat_interleave(heads / part.size(0), 0);
}

double factor_of(std::optional<double> scale, int64_t channels) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(channels)));
}

/// Documents after one another: [T, heads, channels].
struct Documents {
  Tensor ends;  // [documents + 1] int32
  int64_t longest = 0;
  bool is_causal = true;
  OptionalInt left, right;
};

/// On the host. {out [T, heads, channels], log-sum-exp [heads, T] fp32}
std::pair<Tensor, Tensor> attend(const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Documents& documents, double factor) {
  const int64_t heads = q.size(1);
  Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous),
         lse = at::empty({heads, q.size(0)}, at::kFloat);
  for (int64_t i = 0; i + 1 < documents.ends.numel(); ++i) {
    const int64_t begin = documents.ends[i].item<int>(), end = documents.ends[i + 1].item<int>();
    if (begin == end) continue;
    TORCH_CHECK(end - begin <= documents.longest && end <= q.size(0),
                "a document is longer than max_q");
    const auto of = [&](const Tensor& x) { return heads_first(x, begin, end, heads); };
    Tensor scores = at::matmul(of(q), of(k).transpose(1, 2)) * factor;
    scores.masked_fill_(hidden(end - begin, documents.is_causal, documents.left, documents.right),
                        -INFINITY);
    const Tensor sums = scores.logsumexp(-1);
    lse.slice(1, begin, end).copy_(sums);
    out.slice(0, begin, end)
        .copy_(at::matmul((scores - sums.unsqueeze(-1)).exp(), of(v)).transpose(0, 1));
  }
  return {out, lse};
}

struct Attended {
  Tensor d_out, q, k, v, out;  // [T, heads, channels]
  Tensor lse;                  // [heads, T]
};

/// On the host. {dq, dk, dv}
std::array<Tensor, 3> attend_backward(const Attended& saved, const Documents& documents,
                                      double factor) {
  const int64_t heads = saved.q.size(1), kv_heads = saved.k.size(1), channels = saved.q.size(2);
  Tensor dq = at::empty_like(saved.q, at::MemoryFormat::Contiguous),
         dk = at::empty_like(saved.k, at::MemoryFormat::Contiguous), dv = at::empty_like(dk);
  for (int64_t i = 0; i + 1 < documents.ends.numel(); ++i) {
    const int64_t begin = documents.ends[i].item<int>(), end = documents.ends[i + 1].item<int>(),
                  length = end - begin;
    if (length == 0) continue;
    const auto of = [&](const Tensor& x) { return heads_first(x, begin, end, heads); };
    Tensor scores = at::matmul(of(saved.q), of(saved.k).transpose(1, 2)) * factor;
    scores.masked_fill_(hidden(length, documents.is_causal, documents.left, documents.right),
                        -INFINITY);
    const Tensor p = (scores - saved.lse.slice(1, begin, end).unsqueeze(-1)).exp();
    const Tensor dp = at::matmul(of(saved.d_out), of(saved.v).transpose(1, 2));
    const Tensor delta = (of(saved.d_out) * of(saved.out)).sum(-1, /*keepdim=*/true);
    const Tensor ds = p * (dp - delta) * factor;
    const auto of_keys = [&](const Tensor& x) {
      return x.view({kv_heads, heads / kv_heads, length, channels}).sum(1).transpose(0, 1);
    };
    dq.slice(0, begin, end).copy_(at::matmul(ds, of(saved.k)).transpose(0, 1));
    dk.slice(0, begin, end).copy_(of_keys(at::matmul(ds.transpose(1, 2), of(saved.q))));
    dv.slice(0, begin, end).copy_(of_keys(at::matmul(p.transpose(1, 2), of(saved.d_out))));
  }
  return {dq, dk, dv};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& ends_q,
    const OptionalTensor& ends_k, int64_t max_q, int64_t /*max_k*/, double dropout, bool is_causal,
    bool /*return_debug_mask*/, std::optional<double> scale, OptionalInt left, OptionalInt right,
    const OptionalTensor& /*seqused_k*/, const OptionalTensor& /*alibi_slopes*/) {
  check_flash(query, key);
  TORCH_CHECK(dropout == 0 && ends_q && ends_k && ends_q->scalar_type() == at::kInt);
  const auto [out, lse] = attend(query, key, value, {*ends_q, max_q, is_causal, left, right},
                                 factor_of(scale, query.size(2)));
  return {out, lse, at::zeros({2}, at::kLong), at::empty({0}, at::kLong),
          at::empty({0}, out.options())};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& output, const Tensor& logsumexp, const Tensor& ends_q, const Tensor& /*ends_k*/,
    int64_t max_q, int64_t /*max_k*/, double /*dropout*/, bool is_causal,
    const Tensor& /*rng_state*/, const Tensor& /*unused*/, std::optional<double> scale,
    OptionalInt left, OptionalInt right) {
  check_flash(query, key);
  const int card = compute_capability();
  const bool has_little_memory = (card >= 86 && card <= 89) || card >= 120;
  TORCH_CHECK(!has_little_memory || query.size(2) <= 192 || query.size(2) > 224,
              "FlashAttention's backward pass for heads of ", query.size(2), " channels on sm_",
              card);
  TORCH_CHECK(grad.scalar_type() == query.scalar_type() && output.sizes() == query.sizes());
  const auto [dq, dk, dv] =
      attend_backward({grad, query, key, value, output, logsumexp},
                      {ends_q, max_q, is_causal, left, right}, factor_of(scale, query.size(2)));
  return {dq, dk, dv};
}

/// As can_use_cudnn_attention of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and
/// MHA.cpp: q, k, v [documents, heads, length, channels].
void check_cudnn(const Tensor& q, const Tensor& k, const Tensor& v) {
  constexpr int64_t kChannelStep = 8, kAlignment = 16;
  const int64_t most = compute_capability() == 90 ? 256 : 128;
  for (const Tensor* x : {&q, &k, &v}) {
    TORCH_CHECK(x->dim() == 4, "Q tensor has unexpected number of dims");
    TORCH_CHECK(x->scalar_type() == q.scalar_type() &&
                    (q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16),
                "cuDNN attention only supports fp16 and bf16");
    TORCH_CHECK(x->size(3) % kChannelStep == 0 && x->size(3) <= most,
                "head_dim should be no more than ", most, " and a multiple of 8");
    TORCH_CHECK(x->stride(3) == 1 && x->size(2) == q.size(2) && x->size(0) == q.size(0));
    if (reinterpret_cast<uintptr_t>(x->const_data_ptr()) % kAlignment != 0)
      fail("an operand of cuDNN is not aligned to 16 bytes");
  }
  TORCH_CHECK(q.size(1) % k.size(1) == 0 && k.size(1) == v.size(1));
  TORCH_CHECK(compute_capability() >= 80, "cuDNN MHA only supports gpu architectures from sm80");
}

/// LibTorch looks up a plan of the backward pass by q, k and v: other strides of the rest would be
/// read with the plan's.
void check_plan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& grad,
                const Tensor& out, const Tensor& lse) {
  using Layout = std::vector<std::vector<int64_t>>;
  static std::map<Layout, Layout> plans;
  static std::mutex mutex;
  const auto layout_of = [](std::initializer_list<const Tensor*> tensors) {
    Layout layout;
    for (const Tensor* x : tensors) {
      layout.push_back(x->sizes().vec());
      layout.push_back(x->strides().vec());
    }
    return layout;
  };
  const std::lock_guard lock(mutex);
  const Layout rest = layout_of({&grad, &out, &lse});
  const auto [plan, is_new] = plans.emplace(layout_of({&q, &k, &v}), rest);
  if (plan->second != rest) fail("cuDNN's plan was built for other strides");
}

/// [documents, heads, length, channels] as [documents * length, heads, channels].
Tensor tokens_first(const Tensor& x) {
  return x.transpose(1, 2).reshape({-1, x.size(1), x.size(3)});
}
/// The same the other way, in memory as LibTorch has results: tokens outside heads.
Tensor heads_second(const Tensor& x, const Tensor& like) {
  return x.view({like.size(0), like.size(2), like.size(1), like.size(3)}).transpose(1, 2);
}
Documents equal_documents(const Tensor& q, int64_t max_q, bool is_causal) {
  TORCH_CHECK(max_q == q.size(2));
  const Tensor ends = at::arange(q.size(0) + 1, at::kInt) * q.size(2);
  return {ends, max_q, is_causal, {}, {}};
}

/// Only of documents of one length: LibTorch 2.11's backward pass of others takes the number of
/// channels for the longest length.
using CudnnForward =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;
CudnnForward cudnn_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                           const OptionalTensor& bias, const OptionalTensor& ends_q,
                           const OptionalTensor& ends_k, int64_t max_q, int64_t max_k,
                           bool compute_log_sumexp, double dropout, bool is_causal,
                           bool /*return_debug_mask*/, std::optional<double> scale) {
  TORCH_CHECK(!bias && !ends_q && !ends_k && dropout == 0 && compute_log_sumexp);
  check_cudnn(query, key, value);
  const Tensor& q = query;
  const auto [out, lse] = attend(tokens_first(q), tokens_first(key), tokens_first(value),
                                 equal_documents(q, max_q, is_causal), factor_of(scale, q.size(3)));
  const Tensor of_documents =
      lse.view({q.size(1), q.size(0), q.size(2), 1}).transpose(0, 1).contiguous();
  const auto seed = [] { return at::zeros({1}, at::kLong); };
  return {heads_second(out, q),
          of_documents,
          Tensor(),
          Tensor(),
          max_q,
          max_k,
          seed(),
          seed(),
          Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> cudnn_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& output, const Tensor& logsumexp, const Tensor& /*seed*/, const Tensor& /*offset*/,
    const Tensor& bias, const Tensor& ends_q, const Tensor& /*ends_k*/, int64_t max_q,
    int64_t /*max_k*/, double dropout, bool is_causal, std::optional<double> scale) {
  TORCH_CHECK(!bias.defined() && !ends_q.defined() && dropout == 0);
  check_cudnn(query, key, value);
  check_plan(query, key, value, grad, output, logsumexp);
  TORCH_CHECK(grad.scalar_type() == query.scalar_type() && grad.stride(3) == 1 &&
              output.sizes() == query.sizes() && grad.sizes() == query.sizes());
  const Tensor lse = logsumexp.transpose(0, 1).reshape({query.size(1), -1});
  const auto [dq, dk, dv] =
      attend_backward({tokens_first(grad), tokens_first(query), tokens_first(key),
                       tokens_first(value), tokens_first(output), lse},
                      equal_documents(query, max_q, is_causal), factor_of(scale, query.size(3)));
  return {heads_second(dq, query), heads_second(dk, key), heads_second(dv, key)};
}

/// Operands in 16 bits, sums in fp32 kept.
Tensor mm_dtype(const Tensor& a, const Tensor& b, at::ScalarType dtype) {
  const bool is_half = a.scalar_type() == at::kHalf || a.scalar_type() == at::kBFloat16;
  TORCH_CHECK(a.scalar_type() == b.scalar_type() &&
                  (dtype == a.scalar_type() || (dtype == at::kFloat && is_half)),
              "out_dtype must be the operands', or Float for Half and BFloat16");
  return at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(dtype);
}

/// With factors for rows and columns: [M, 1] and [1, N].
Tensor scaled_mm(const Tensor& a, const Tensor& b, const Tensor& rows, const Tensor& columns,
                 const OptionalTensor& bias, const OptionalTensor& /*scale_result*/,
                 std::optional<at::ScalarType> dtype, bool /*use_fast_accum*/) {
  constexpr int64_t kStep = 16;
  TORCH_CHECK(compute_capability() >= 89,
              "torch._scaled_mm is only supported on CUDA devices with compute capability >= 8.9");
  TORCH_CHECK(a.scalar_type() == at::kFloat8_e4m3fn && b.scalar_type() == at::kFloat8_e4m3fn);
  TORCH_CHECK(a.stride(1) == 1 && b.stride(0) == 1, "mat1 must be row_major and mat2 col_major");
  TORCH_CHECK(a.size(1) % kStep == 0 && b.size(1) % kStep == 0,
              "trailing dimensions must be divisible by 16");
  TORCH_CHECK(rows.scalar_type() == at::kFloat && columns.scalar_type() == at::kFloat &&
              rows.is_contiguous() && columns.is_contiguous());
  TORCH_CHECK(rows.dim() == 2 && rows.size(0) == a.size(0) && rows.size(1) == 1 &&
                  columns.size(0) == 1 && columns.size(1) == b.size(1) && dtype == at::kBFloat16,
              "only row-wise factors and results in bf16 here");
  Tensor y = at::mm(a.to(at::kFloat), b.to(at::kFloat)) * rows * columns;
  if (bias) y = y + *bias;
  return y.to(*dtype);
}

/// As _grouped_mm_validate_inputs of aten/src/ATen/native/GroupedMMUtils.h.
void check_grouped_operand(const Tensor& x) {
  constexpr int64_t kAlignment = 16;  // bytes
  const int64_t end = x.dim() - 1;
  const auto leads = [&](int64_t inner, int64_t outer) {
    return x.stride(inner) == 1 && x.stride(outer) >= std::max<int64_t>(1, x.size(inner));
  };
  const bool by_rows = leads(end, end - 1), by_columns = leads(end - 1, end);
  TORCH_CHECK(by_rows || by_columns, "Invalid strides/sizes");
  TORCH_CHECK(x.stride(by_rows ? end - 1 : end) * 2 % kAlignment == 0,
              "strides should be multiple of 16 bytes");
}

/// 2d x 3d and 2d x 2d. Rows of no group, and products over no row, stay as they were allocated.
Tensor grouped_mm(const Tensor& a, const Tensor& b, const OptionalTensor& ends_of,
                  const OptionalTensor& /*bias*/, std::optional<at::ScalarType> /*dtype*/) {
  const int major = compute_capability() / 10;
  TORCH_CHECK(major == 9 || major == 10, "only the kernel for all groups at once here");
  TORCH_CHECK(a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16 && ends_of &&
              ends_of->scalar_type() == at::kInt);
  check_grouped_operand(a);
  check_grouped_operand(b);
  const Tensor& ends = *ends_of;
  const bool has_matrices = b.dim() == 3;
  Tensor out = has_matrices ? at::empty({a.size(0), b.size(2)}, a.options())
                            : at::empty({ends.numel(), a.size(0), b.size(1)}, a.options());
  out.view(at::kShort).fill_(-1);  // NaN
  const auto product = [](const Tensor& left, const Tensor& right) {
    return at::mm(left.to(at::kFloat), right.to(at::kFloat));
  };
  int64_t begin = 0;
  for (int64_t e = 0; e < ends.numel(); ++e) {
    const int64_t end = ends[e].item<int>();
    if (end > begin && has_matrices)
      out.slice(0, begin, end).copy_(product(a.slice(0, begin, end), b[e]));
    if (end > begin && !has_matrices)
      out[e].copy_(product(a.slice(1, begin, end), b.slice(0, begin, end)));
    begin = end;
  }
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  const auto set = [&](const char* name, auto* kernel) {
    set_host_kernel(std::string("aten::") + name,
                    c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel));
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  };
  set("_flash_attention_forward", flash_forward);
  set("_flash_attention_backward", flash_backward);
  set("_cudnn_attention_forward", cudnn_forward);
  set("_cudnn_attention_backward", cudnn_backward);
  set("mm.dtype", mm_dtype);
  set("_scaled_mm", scaled_mm);
  set("_grouped_mm", grouped_mm);
}

}  // namespace host_backed
