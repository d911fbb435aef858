#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "../operands.h"
#include "../parallel.h"
#include "../row_kernels.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/fp8_product.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"
#include "thin_product.h"
#include "tiled_matmul.h"

/// Chooses the kernel of a product. Where none of ours supports it, LibTorch computes it. For fp32
/// on CPU LibTorch uses MKL, which reaches about half the speed of non-Intel processors; oneDNN,
/// called through an operator that LibTorch registers, is often twice as fast there.
namespace sftrun::kernels {
namespace {

using LinearPointwise = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, std::string_view,
                                   c10::List<std::optional<at::Scalar>>,
                                   std::optional<std::string_view>);

const c10::TypedOperatorHandle<LinearPointwise>* find_onednn_linear() {
  static const auto handle = []() -> std::optional<c10::TypedOperatorHandle<LinearPointwise>> {
    const auto schema = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!schema) return std::nullopt;
    return schema->typed<LinearPointwise>();
  }();
  return handle ? &*handle : nullptr;
}

/// x [T, K] (any strides), w [N, K] (any strides) -> x w^T
at::Tensor onednn_linear(const at::Tensor& x, const at::Tensor& w) {
  return find_onednn_linear()->call(x, w, std::nullopt, "none",
                                    c10::List<std::optional<at::Scalar>>(), "");
}

/// Whether LibTorch has oneDNN's product for this processor. The choice is not made by time: all
/// processes of a run, and the one that resumes it, must choose the same to get bit-identical
/// results, and measurements differ on a busy machine.
bool has_onednn() {
  static const bool has = [] {
    if (find_onednn_linear() == nullptr) return false;
    const at::NoGradGuard no_grad;
    try {
      onednn_linear(at::ones({64, 64}), at::ones({64, 64}));
      return true;
    } catch (const c10::Error&) {  // a LibTorch without this operator's CPU kernel
      return false;
    }
  }();
  return has;
}

constexpr int64_t kThin = 32;  // typical lora_rank, not a layer's width

/// oneDNN is faster on products of some size; MKL for thin operands (LoRA) or few rows
/// (generation).
bool use_onednn(const at::Tensor& a, int64_t rows, int64_t columns, int64_t depth) {
  if (!a.is_cpu() || a.scalar_type() != at::kFloat) return false;
  return rows >= kThin && columns >= kThin && depth >= kThin && has_onednn();
}

at::Tensor product_of(const Product& term) {
  if (thin_product_serves(term)) return thin_product(term);
  const at::Tensor &x = term.x, w = term.w.values(x.scalar_type());
  const bool transposed = term.transposed;
  if (use_onednn(x, x.size(0), w.size(transposed ? 0 : 1), x.size(1)))
    return onednn_linear(x, transposed ? w : w.t());
  return transposed ? at::linear(x, w) : at::mm(x, w);
}

/// out += the product
void add_product(at::Tensor& out, const Product& term) {
  if (tiled_matmul_serves_few_rows(term)) {
    tiled_matmul_sum({term}, /*residual=*/out, {}, out);
  } else {
    const at::Tensor w = term.w.values(term.x.scalar_type());
    out.addmm_(term.x, term.transposed ? w.t() : w, /*beta=*/1, term.scale);
  }
}

/// Few rows are left to a thin product, which does not pack w.
bool tiles_serve(const std::vector<Product>& terms) {
  if (tiled_matmul_serves(terms)) return true;
  return std::all_of(terms.begin(), terms.end(), tiled_matmul_serves_few_rows) &&
         !thin_product_serves(terms.front());
}

/// g^T x, g [T, N], x [T, K]; on CUDA always with fp32 output.
at::Tensor matmul_tn(const at::Tensor& g, const at::Tensor& x) {
  if (use_onednn(g, g.size(1), x.size(1), g.size(0))) return onednn_linear(g.t(), x.t());
  if (g.is_cuda() && g.scalar_type() != at::kFloat) return at::mm(g.t(), x, at::kFloat);
  return at::mm(g.t(), x);
}

/// out += g^T x where g or x has few columns: one pass over the other, parallel over its columns.
template <typename T>
void add_thin(at::Tensor& out, const at::Tensor& g, const at::Tensor& x) {
  SFTRUN_CHECK(g.stride(1) == 1 && x.stride(1) == 1 && out.scalar_type() == at::kFloat);
  const bool g_is_thin = g.size(1) <= x.size(1);
  const at::Tensor &thin = g_is_thin ? g : x, &wide = g_is_thin ? x : g;
  const int64_t thin_step = out.stride(g_is_thin ? 0 : 1),
                wide_step = out.stride(g_is_thin ? 1 : 0);
  constexpr int64_t kColumns = 64;  // per part: whole cache lines of the wide side
  const int64_t parts = (wide.size(1) + kColumns - 1) / kColumns;
  parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part * kColumns;
      row_kernels<T>().matmul.add_thin_product(
          static_cast<const T*>(thin.const_data_ptr()), thin.stride(0), thin.size(1),
          static_cast<const T*>(wide.const_data_ptr()) + first, wide.stride(0),
          std::min(kColumns, wide.size(1) - first), wide.size(0),
          out.data_ptr<float>() + first * wide_step, thin_step, wide_step);
    }
  });
}

/// FP8 terms are added one by one after the others, because each has its own scales.
at::Tensor sum_with_fp8(const std::vector<Product>& terms, const at::Tensor& residual,
                        const at::Tensor& bias) {
  std::vector<Product> others;
  for (const Product& term : terms)
    if (!is_fp8(term)) others.push_back(term);
  at::Tensor sum = others.empty() ? residual : matmul_sum(others, residual, bias);
  at::Tensor unused = others.empty() ? bias : at::Tensor();
  for (const Product& term : terms)
    if (is_fp8(term)) sum = fp8_product(term, sum, std::exchange(unused, {}));
  return sum;
}

}  // namespace

at::Tensor matmul_sum(const std::vector<Product>& terms, const at::Tensor& residual,
                      const at::Tensor& bias) {
  const ProfileRange range("matmul_sum");
  if (std::any_of(terms.begin(), terms.end(), is_fp8)) return sum_with_fp8(terms, residual, bias);
  if (tiles_serve(terms)) {
    const Product& first = terms.front();
    at::Tensor out =
        at::empty({first.x.size(0), first.w.size(first.transposed ? 0 : 1)}, first.x.options());
    tiled_matmul_sum(terms, residual, bias, out);
    return out;
  }
  at::Tensor out = product_of(terms.front());
  if (terms.front().scale != 1) out.mul_(terms.front().scale);
  for (size_t i = 1; i < terms.size(); ++i) add_product(out, terms[i]);
  if (bias.defined()) out.add_(bias);
  if (residual.defined()) out.add_(residual);
  return out;
}

void add_matmul_tn_(at::Tensor& out, const at::Tensor& g, const at::Tensor& x) {
  const ProfileRange range("add_matmul_tn");
  TORCH_CHECK(g.dim() == 2 && x.dim() == 2 && g.size(0) == x.size(0) &&
                  g.scalar_type() == x.scalar_type() && out.scalar_type() == at::kFloat &&
                  out.size(0) == g.size(1) && out.size(1) == x.size(1),
              "products of ", g.sizes(), " and ", x.sizes(), " into ", out.sizes());
  const bool is_thin = g.is_cpu() && std::min(g.size(1), x.size(1)) <= kThin;
  if (is_thin && g.scalar_type() == at::kFloat)
    add_thin<float>(out, g, x);
  else if (is_thin)
    add_thin<uint16_t>(out, g, x);
  else if (out.is_contiguous() && tiled_matmul_tn_serves(g, x))
    add_tiled_matmul_tn(out, g, x);
  else
    out.add_(matmul_tn(g, x));
}

}  // namespace sftrun::kernels
