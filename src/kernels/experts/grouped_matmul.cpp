#include <ATen/ATen.h>
#include <ATen/ops/_grouped_mm.h>

#include "cuda/launch.h"
#include "experts/grouped_matmul_launch.h"
#include "operands.h"
#include "sftrun/kernels/expert_ops.h"
#include "sftrun/kernels/grouped_matmul.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

/// Grouped matrix products: the rows of each expert times its matrix. CUDA: one launch of
/// LibTorch's kernel, or of ours where LibTorch has none. CPU: one product per expert with all
/// threads.
namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_grouped_matmul)> launch_grouped_matmul(
    "launch_grouped_matmul");
const CudaEntry<decltype(cuda::launch_grouped_matmul_tn)> launch_grouped_matmul_tn(
    "launch_grouped_matmul_tn");

/// Padding of n elements to a multiple of 16 bytes in bf16.
int64_t missing(int64_t n) {
  constexpr int64_t kRow = 8;
  return (kRow - n % kRow) % kRow;
}

/// Zero-pads the last two dimensions; contiguous without padding.
at::Tensor padded(const at::Tensor& x, int64_t rows, int64_t columns) {
  return rows + columns == 0 ? x.contiguous() : at::constant_pad_nd(x, {0, columns, 0, rows});
}

/// Checks g, x and the routes.
void require_grouped(const at::Tensor& g, const at::Tensor& x, int64_t experts,
                     const Routes& routes) {
  TORCH_CHECK(g.dim() == 2 && x.dim() == 2 && g.size(0) == x.size(0) &&
                  g.scalar_type() == x.scalar_type() && g.device() == x.device(),
              "products of ", g.sizes(), " and ", x.sizes());
  if (g.is_cuda()) {
    require_operand(routes.ends, g, at::kInt);
    require_numel(routes.ends, experts);
  } else {
    TORCH_CHECK(static_cast<int64_t>(routes.offsets.size()) == experts + 1, "routes to ",
                routes.offsets.size(), " places of ", experts, " experts");
  }
}

/// The condition of at::_grouped_mm (aten/src/ATen/native/cuda/GroupedBlas.cpp); elsewhere it
/// copies `ends` to the host and multiplies one matrix after the other.
bool libtorch_groups(const at::Tensor& x) {
  if (x.scalar_type() != at::kBFloat16) return false;
  const int major = compute_capability(x.device()) / 10;
  return major == 9 || major == 10;
}

at::Tensor grouped_matmul_on_cuda(const at::Tensor& x, const at::Tensor& w, bool transposed,
                                  const at::Tensor& ends) {
  const cuda::GroupedShape shape{x.size(0), x.size(1), w.size(transposed ? 1 : 2), w.size(0)};
  at::Tensor y = at::empty({shape.rows, shape.columns}, x.options());
  const Launch launch(x);
  launch_grouped_matmul(cuda_type_of(x), x.data_ptr(), w.data_ptr(), ends.data_ptr<int32_t>(),
                        y.data_ptr(), shape, transposed, launch.stream());
  launch.check();
  return y;
}

void add_grouped_matmul_tn_on_cuda(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                                   const at::Tensor& ends) {
  const Launch launch(g);
  launch_grouped_matmul_tn(cuda_type_of(g), g.data_ptr(), x.data_ptr(), ends.data_ptr<int32_t>(),
                           out.data_ptr<float>(), {g.size(0), g.size(1), x.size(1), out.size(0)},
                           launch.stream());
  launch.check();
}

}  // namespace

Routes routes_of(const at::Tensor& chosen, int64_t num_experts) {
  if (chosen.is_cuda()) return sort_routes(chosen.to(at::kInt).contiguous(), num_experts);
  const at::Tensor flat = chosen.reshape({-1});
  Routes routes;
  const auto sorted = flat.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  routes.experts = std::get<0>(sorted);
  routes.slots = std::get<1>(sorted);
  routes.tokens = at::floor_divide(routes.slots, chosen.size(1));
  const at::Tensor ends = at::bincount(flat, {}, num_experts).cumsum(0);
  routes.ends = ends.to(at::kInt);
  routes.offsets = {0};
  for (int64_t e = 0; e < num_experts; ++e)
    routes.offsets.push_back(ends.const_data_ptr<int64_t>()[e]);
  return routes;
}

at::Tensor grouped_matmul_at_once(const at::Tensor& x, const at::Tensor& w, bool transposed,
                                  const at::Tensor& ends) {
  const int64_t inner = missing(x.size(1)), columns = w.size(transposed ? 1 : 2),
                outer = missing(columns);
  const at::Tensor rows = padded(x, 0, inner);
  const at::Tensor matrices =
      transposed ? padded(w, outer, inner).transpose(1, 2) : padded(w, inner, outer);
  const at::Tensor y = at::_grouped_mm(rows, matrices, ends);
  return outer == 0 ? y : y.narrow(1, 0, columns).contiguous();
}

at::Tensor grouped_matmul_tn_at_once(const at::Tensor& g, const at::Tensor& x,
                                     const at::Tensor& ends) {
  return at::_grouped_mm(padded(g, 0, missing(g.size(1))).t(), padded(x, 0, missing(x.size(1))),
                         ends)
      .narrow(1, 0, g.size(1))
      .narrow(2, 0, x.size(1));
}

at::Tensor ExpertStack::values(int64_t expert, at::ScalarType dtype) const {
  if (quantized == nullptr) return dense.select(0, expert);
  return dequantize(quantized->narrow(expert * rows(), rows()), dtype);
}

at::Tensor grouped_matmul(const at::Tensor& x, const ExpertStack& w, bool transposed,
                          const Routes& routes) {
  const ProfileRange range("grouped_matmul");
  require_grouped(x, x, w.experts, routes);
  TORCH_CHECK(x.size(1) == (transposed ? w.columns() : w.rows()), "a product of ", x.sizes(),
              " and matrices of ", w.rows(), " x ", w.columns());
  if (x.is_cuda()) {
    const at::Tensor& ends = routes.ends;
    const at::Tensor all =
        w.quantized == nullptr
            ? w.dense
            : dequantize(*w.quantized, x.scalar_type()).view({w.experts, w.rows(), w.columns()});
    return libtorch_groups(x)
               ? grouped_matmul_at_once(x, all, transposed, ends)
               : grouped_matmul_on_cuda(x.contiguous(), all.contiguous(), transposed, ends);
  }
  at::Tensor out = at::empty({x.size(0), transposed ? w.rows() : w.columns()}, x.options());
  // FP8: only weights are quantised. Grouped products do not round activations, also on CUDA.
  const bool unpacks = w.quantized != nullptr && w.quantized->info().rounds_activations;
  for (int64_t e = 0; e < w.experts; ++e) {
    const int64_t begin = routes.offsets[static_cast<size_t>(e)],
                  rows = routes.offsets[static_cast<size_t>(e) + 1] - begin;
    if (rows == 0) continue;
    const bool is_dense = w.quantized == nullptr || unpacks;
    const QuantizedMatrix packed =
        is_dense ? QuantizedMatrix() : w.quantized->narrow(e * w.rows(), w.rows());
    const Matrix matrix = is_dense ? Matrix(w.values(e, x.scalar_type())) : Matrix(packed);
    out.narrow(0, begin, rows).copy_(matmul_sum({{x.narrow(0, begin, rows), matrix, transposed}}));
  }
  return out;
}

void add_grouped_matmul_tn_(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                            const Routes& routes) {
  const ProfileRange range("add_grouped_matmul_tn");
  require_grouped(g, x, out.size(0), routes);
  require_operand(out, g, at::kFloat);
  TORCH_CHECK(out.size(1) == g.size(1) && out.size(2) == x.size(1), "products of ", g.sizes(),
              " and ", x.sizes(), " into ", out.sizes());
  if (g.is_cuda()) {
    const at::Tensor& ends = routes.ends;
    if (libtorch_groups(g))
      add_expert_products_(out, grouped_matmul_tn_at_once(g, x, ends), ends);
    else
      add_grouped_matmul_tn_on_cuda(out, g.contiguous(), x.contiguous(), ends);
    return;
  }
  for (int64_t e = 0; e < out.size(0); ++e) {
    const int64_t begin = routes.offsets[static_cast<size_t>(e)],
                  rows = routes.offsets[static_cast<size_t>(e) + 1] - begin;
    if (rows == 0) continue;
    at::Tensor of_expert = out.select(0, e);
    add_matmul_tn_(of_expert, g.narrow(0, begin, rows), x.narrow(0, begin, rows));
  }
}

}  // namespace sftrun::kernels
