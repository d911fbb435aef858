#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <functional>

#include "sftrun/kernels/ops.h"

/// fp32 products on CPU: LibTorch sends them to MKL, which uses about half of a processor that is
/// not Intel's; oneDNN, reached through an operator that LibTorch registers, is often twice as fast
/// there. Measured once per process, on a product of ordinary size.
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

double seconds_of(const std::function<void()>& body) {
  body();  // warm-up: code generation, packing buffers
  double best = 1e9;
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

bool onednn_is_faster() {
  static const bool faster = [] {
    if (find_onednn_linear() == nullptr) return false;
    const at::NoGradGuard no_grad;
    const at::Tensor x = at::ones({512, 576}), w = at::ones({768, 576});
    try {
      return seconds_of([&] { onednn_linear(x, w); }) < seconds_of([&] { at::mm(x, w.t()); });
    } catch (const c10::Error&) {  // a LibTorch without this operator's CPU kernel
      return false;
    }
  }();
  return faster;
}

/// oneDNN wins on products of some size; a thin side (LoRA's rank) or few rows (generation) go to
/// MKL.
bool use_onednn(const at::Tensor& a, int64_t rows, int64_t columns, int64_t depth) {
  constexpr int64_t kThin = 32;
  if (!a.is_cpu() || a.scalar_type() != at::kFloat) return false;
  return rows >= kThin && columns >= kThin && depth >= kThin && onednn_is_faster();
}

}  // namespace

at::Tensor matmul_nt(const at::Tensor& x, const at::Tensor& w) {
  if (use_onednn(x, x.size(0), w.size(0), x.size(1))) return onednn_linear(x, w);
  return at::linear(x, w);
}

at::Tensor matmul_nn(const at::Tensor& g, const at::Tensor& w) {
  if (use_onednn(g, g.size(0), w.size(1), g.size(1))) return onednn_linear(g, w.t());
  return at::mm(g, w);
}

at::Tensor matmul_tn(const at::Tensor& g, const at::Tensor& x) {
  if (use_onednn(g, g.size(1), x.size(1), g.size(0))) return onednn_linear(g.t(), x.t());
  return at::mm(g.t(), x);
}

}  // namespace sftrun::kernels
