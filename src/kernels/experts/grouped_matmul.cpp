#include <ATen/ATen.h>
#include <ATen/ops/_grouped_mm.h>

#include "cuda/launch.h"
#include "experts/grouped_scalar_launch.h"
#include "experts/grouped_tiles_launch.h"
#include "formats/cuda_formats.h"
#include "operands.h"
#include "sftrun/kernels/expert_ops.h"
#include "sftrun/kernels/grouped_matmul.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

/// Grouped matrix products: the rows of each expert times its matrix. CUDA: one launch; of
/// LibTorch's kernel for large dense matrices on GPUs for which it has one, of ours otherwise. CPU: one
/// product per expert with all threads.
namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::tiles_serve)> tiles_serve("grouped_tiles_serve");
const CudaEntry<decltype(cuda::launch_grouped_tiles)> launch_grouped_tiles("launch_grouped_tiles");
const CudaEntry<decltype(cuda::gradient_tiles_serve)> gradient_tiles_serve("gradient_tiles_serve");
const CudaEntry<decltype(cuda::launch_grouped_gradients)> launch_grouped_gradients(
    "launch_grouped_gradients");
const CudaEntry<decltype(cuda::launch_grouped_scalar)> launch_grouped_scalar(
    "launch_grouped_scalar");
const CudaEntry<decltype(cuda::launch_grouped_scalar_tn)> launch_grouped_scalar_tn(
    "launch_grouped_scalar_tn");

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

/// LibTorch's kernel has tiles of 128 and no adapters: narrow products are ours.
bool libtorch_serves(const at::Tensor& x, int64_t inner, int64_t columns) {
  constexpr int64_t kNarrow = 64;
  return libtorch_groups(x) && inner >= kNarrow && columns >= kNarrow;
}

/// One launch of our kernel: `product`, whose matrices are `w` if that is not null, and `beside`.
/// @param y [T', columns]
void launch_tiles(const cuda::GroupedTiles& tiles, const QuantizedMatrix* w, const at::Tensor& y) {
  if (w != nullptr) {
    grouped_tiles_on_cuda(tiles, *w, y);
    return;
  }
  const Launch launch(y);
  launch_grouped_tiles(cuda_type_of(y), tiles, launch.stream());
  launch.check();
}

/// Operands of one launch, in memory that outlives it.
struct GroupedOperands {
  at::Tensor x, w;       ///< w: dense, or undefined
  GroupedBeside beside;  ///< contiguous, or undefined
  at::Tensor ends, y;
  int64_t experts, columns;
  bool transposed;

  cuda::GroupedTiles tiles(bool adds) const {
    return {term(x, w),
            term(beside.x, beside.w),
            ends.const_data_ptr<int32_t>(),
            x.size(0),
            columns,
            experts,
            transposed,
            adds,
            y.data_ptr()};
  }

 private:
  static cuda::GroupedTerm term(const at::Tensor& x, const at::Tensor& w) {
    if (!x.defined()) return {};
    return {x.const_data_ptr(), w.defined() ? w.const_data_ptr() : nullptr, x.size(1)};
  }
};

/// y of a product that no kernel of tensor cores takes.
void scalar_product(const at::Tensor& x, const at::Tensor& w, bool transposed,
                    const at::Tensor& ends, const at::Tensor& y) {
  const Launch launch(x);
  launch_grouped_scalar(cuda_type_of(x), x.const_data_ptr(), w.const_data_ptr(),
                        ends.const_data_ptr<int32_t>(), y.data_ptr(),
                        {x.size(0), x.size(1), y.size(1), w.size(0)}, transposed, launch.stream());
  launch.check();
}

/// y += x_e w_e^T or x_e w_e of an adapter.
void add_beside(const at::Tensor& y, const GroupedBeside& beside, bool transposed,
                const at::Tensor& ends) {
  GroupedOperands operands{beside.x, beside.w,         {},        ends,
                           y,        beside.w.size(0), y.size(1), transposed};
  const cuda::GroupedTiles tiles = operands.tiles(/*adds=*/true);
  if (tiles_serve(cuda_type_of(y), tiles)) {
    launch_tiles(tiles, nullptr, y);
    return;
  }
  const at::Tensor product = at::empty_like(y);
  scalar_product(beside.x, beside.w, transposed, ends, product);
  y.add_(product);
}

at::Tensor grouped_matmul_on_cuda(const at::Tensor& x, const ExpertStack& w, bool transposed,
                                  const at::Tensor& ends, const GroupedBeside& beside) {
  const int64_t columns = transposed ? w.rows() : w.columns();
  const bool decodes = w.quantized != nullptr && x.scalar_type() != at::kFloat &&
                       decodes_in_grouped_products(*w.quantized);
  GroupedOperands operands{x.contiguous(), {}, {}, ends, {}, w.experts, columns, transposed};
  if (beside.x.defined()) operands.beside = {beside.x.contiguous(), beside.w.contiguous()};
  if (decodes) {
    operands.y = at::empty({x.size(0), columns}, x.options());
    const cuda::GroupedTiles tiles = operands.tiles(/*adds=*/false);
    if (tiles_serve(cuda_type_of(x), tiles)) {
      launch_tiles(tiles, w.quantized, operands.y);
      return operands.y;
    }
  }
  const at::Tensor all =
      w.quantized == nullptr
          ? w.dense.contiguous()
          : dequantize(*w.quantized, x.scalar_type()).view({w.experts, w.rows(), w.columns()});
  if (libtorch_serves(x, x.size(1), columns)) {
    const at::Tensor y = grouped_matmul_at_once(operands.x, all, transposed, ends);
    if (beside.x.defined()) add_beside(y, operands.beside, transposed, ends);
    return y;
  }
  operands.w = all;
  if (!operands.y.defined()) operands.y = at::empty({x.size(0), columns}, x.options());
  const cuda::GroupedTiles tiles = operands.tiles(/*adds=*/false);
  if (tiles_serve(cuda_type_of(x), tiles)) {
    launch_tiles(tiles, nullptr, operands.y);
    return operands.y;
  }
  scalar_product(operands.x, all, transposed, ends, operands.y);
  if (beside.x.defined()) add_beside(operands.y, operands.beside, transposed, ends);
  return operands.y;
}

void add_gradients_on_cuda(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                           const at::Tensor& ends) {
  if (libtorch_serves(g, out.size(1), out.size(2))) {
    add_expert_products_(out, grouped_matmul_tn_at_once(g, x, ends), ends);
    return;
  }
  const cuda::Type type = cuda_type_of(g);
  const at::Tensor left = g.contiguous(), right = x.contiguous();
  const cuda::GroupedGradients gradients{left.const_data_ptr(),
                                         right.const_data_ptr(),
                                         ends.const_data_ptr<int32_t>(),
                                         g.size(0),
                                         g.size(1),
                                         x.size(1),
                                         out.size(0),
                                         out.data_ptr<float>()};
  const Launch launch(g);
  if (gradient_tiles_serve(type, gradients)) {
    launch_grouped_gradients(type, gradients, launch.stream());
  } else {
    launch_grouped_scalar_tn(type, gradients.g, gradients.x, gradients.ends, gradients.out,
                             {gradients.rows, gradients.n, gradients.k, gradients.experts},
                             launch.stream());
  }
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
                          const Routes& routes, const GroupedBeside& beside) {
  const ProfileRange range("grouped_matmul");
  require_grouped(x, x, w.experts, routes);
  TORCH_CHECK(x.size(1) == (transposed ? w.columns() : w.rows()), "a product of ", x.sizes(),
              " and matrices of ", w.rows(), " x ", w.columns());
  if (beside.x.defined()) {
    require_grouped(beside.x, x, w.experts, routes);
    TORCH_CHECK(beside.w.dim() == 3 && beside.w.size(0) == w.experts &&
                    beside.w.size(transposed ? 2 : 1) == beside.x.size(1) &&
                    beside.w.size(transposed ? 1 : 2) == (transposed ? w.rows() : w.columns()),
                "an adapter of ", beside.w.sizes(), " for ", beside.x.sizes());
  }
  if (x.is_cuda()) return grouped_matmul_on_cuda(x, w, transposed, routes.ends, beside);
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
  if (beside.x.defined()) out.add_(grouped_matmul(beside.x, beside.w, transposed, routes));
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
    add_gradients_on_cuda(out, g, x, routes.ends);
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
