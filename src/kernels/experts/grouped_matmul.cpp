#include <ATen/ATen.h>
#include <ATen/ops/_grouped_mm.h>

#include "sftrun/kernels/experts.h"
#include "sftrun/kernels/ops.h"

/// Products of many matrices with the rows that are theirs: on CUDA in one launch, on a CPU one
/// after the other, each with all threads.
namespace sftrun::kernels {
namespace {

/// cuBLAS-like grouped products take bf16, and rows of whole 16 bytes.
bool groups(const at::Tensor& x, const at::Tensor& w) {
  constexpr int64_t kRow = 8;
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && x.size(1) % kRow == 0 &&
         w.size(1) % kRow == 0 && w.size(2) % kRow == 0;
}

}  // namespace

Routes routes_of(const at::Tensor& chosen, int64_t num_experts) {
  const at::Tensor flat = chosen.reshape({-1});
  Routes routes;
  const auto sorted = flat.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  routes.experts = std::get<0>(sorted);
  routes.slots = std::get<1>(sorted);
  routes.tokens = at::floor_divide(routes.slots, chosen.size(1));
  const at::Tensor ends = at::bincount(flat, {}, num_experts).cumsum(0);
  if (chosen.is_cuda()) routes.offsets_device = ends.to(at::kInt);
  const at::Tensor host = ends.cpu();
  routes.offsets = {0};
  for (int64_t e = 0; e < num_experts; ++e)
    routes.offsets.push_back(host.const_data_ptr<int64_t>()[e]);
  return routes;
}

at::Tensor grouped_matmul(const at::Tensor& x, const at::Tensor& w, bool transposed,
                          const Routes& routes) {
  if (groups(x, w))
    return at::_grouped_mm(x, transposed ? w.transpose(1, 2) : w, routes.offsets_device);
  at::Tensor out = at::empty({x.size(0), w.size(transposed ? 1 : 2)}, x.options());
  for (int64_t e = 0; e < w.size(0); ++e) {
    const int64_t begin = routes.offsets[static_cast<size_t>(e)],
                  rows = routes.offsets[static_cast<size_t>(e) + 1] - begin;
    if (rows == 0) continue;
    out.narrow(0, begin, rows)
        .copy_(matmul_sum({{x.narrow(0, begin, rows), w.select(0, e), transposed}}));
  }
  return out;
}

void add_grouped_matmul_tn_(at::Tensor& out, const at::Tensor& g, const at::Tensor& x,
                            const Routes& routes) {
  for (int64_t e = 0; e < out.size(0); ++e) {
    const int64_t begin = routes.offsets[static_cast<size_t>(e)],
                  rows = routes.offsets[static_cast<size_t>(e) + 1] - begin;
    if (rows == 0) continue;
    at::Tensor of_expert = out.select(0, e);
    add_matmul_tn_(of_expert, g.narrow(0, begin, rows), x.narrow(0, begin, rows));
  }
}

}  // namespace sftrun::kernels
