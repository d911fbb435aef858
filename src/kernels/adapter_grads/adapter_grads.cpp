#include <ATen/ATen.h>

#include <algorithm>

#include "adapter_grads/adapter_grads_launch.h"
#include "cuda/launch.h"
#include "operands.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::work_of)> adapter_grad_work("adapter_grad_work");
const CudaEntry<decltype(cuda::launch_adapter_grads)> launch_adapter_grads("launch_adapter_grads");

/// The wide side is `wide`; the side with lora_rank columns is `thin`.
cuda::AdapterGrad adapter_grad(const AdapterGrad& grad) {
  const bool g_is_wide = !grad.norm.rstd.defined() && grad.g.size(1) >= grad.x.size(1);
  const at::Tensor &wide = g_is_wide ? grad.g : grad.x, &thin = g_is_wide ? grad.x : grad.g;
  return {.wide = wide.const_data_ptr(),
          .thin = thin.const_data_ptr(),
          .rstd = grad.norm.rstd.defined() ? grad.norm.rstd.const_data_ptr<float>() : nullptr,
          .weight = grad.norm.rstd.defined() ? grad.norm.weight.const_data_ptr() : nullptr,
          .offset = static_cast<float>(grad.norm.offset),
          .wide_stride = wide.stride(0),
          .wide_columns = wide.size(1),
          .thin_stride = thin.stride(0),
          .rank = thin.size(1),
          .parts = 1,
          .part = {{.out = grad.out.data_ptr<float>(),
                    .rank = thin.size(1),
                    .wide_step = grad.out.stride(g_is_wide ? 0 : 1),
                    .rank_step = grad.out.stride(g_is_wide ? 1 : 0),
                    .scale = static_cast<float>(grad.scale)}}};
}

/// Whether the columns of `next` follow those of `grad` in one matrix, for the same wide side: it is
/// read once for both.
bool continues(const cuda::AdapterGrad& grad, const cuda::AdapterGrad& next, const at::Tensor& g) {
  return grad.wide == next.wide && grad.wide_stride == next.wide_stride &&
         grad.wide_columns == next.wide_columns && grad.rstd == next.rstd &&
         grad.weight == next.weight && grad.offset == next.offset &&
         grad.thin_stride == next.thin_stride && grad.parts < cuda::kMaxGradParts &&
         grad.rank + next.rank <= cuda::max_grad_ranks(cuda_type_of(g)) &&
         static_cast<const char*>(grad.thin) + grad.rank * g.element_size() == next.thin;
}

std::vector<cuda::AdapterGrad> joined(const std::vector<AdapterGrad>& grads) {
  std::vector<cuda::AdapterGrad> products;
  for (const AdapterGrad& each : grads) {
    const cuda::AdapterGrad next = adapter_grad(each);
    const auto before = std::find_if(
        products.begin(), products.end(),
        [&](const cuda::AdapterGrad& product) { return continues(product, next, each.g); });
    if (before == products.end()) {
      products.push_back(next);
      continue;
    }
    before->part[before->parts++] = next.part[0];
    before->rank += next.rank;
  }
  // Blocks of more ranks take longer: they begin first.
  std::stable_sort(products.begin(), products.end(),
                   [](const cuda::AdapterGrad& one, const cuda::AdapterGrad& other) {
                     return one.rank > other.rank;
                   });
  return products;
}

/// Into how many parts tokens are divided: where there are few tiles, so many that each
/// multiprocessor has two blocks. Two parts gain less than adding them costs (measured on an H100,
/// bench/adapter_bandwidth).
int64_t token_parts(int64_t tiles, int64_t tokens, int64_t multiprocessors) {
  constexpr int64_t kMinTokens = 1024, kMin = 3, kMax = 8;
  if (tiles == 0) return 1;
  const int64_t parts = std::min(2 * multiprocessors / tiles, tokens / kMinTokens);
  return parts < kMin ? 1 : std::min(parts, kMax);
}

/// Divides the tokens where `arrivals` has room for the tiles.   @return the partial sums
at::Tensor divide_tokens(cuda::Type type, const at::Tensor& arrivals, cuda::AdapterGrads& grads) {
  static_assert(cuda::kGradColumns == kGradTileColumns);
  constexpr int64_t kStep = 64;
  grads.part_tokens = grads.tokens;
  const int64_t tiles = adapter_grad_work(type, grads).tiles;
  if (!arrivals.defined() || arrivals.numel() < tiles) return {};
  const int64_t parts = token_parts(tiles, grads.tokens, multiprocessors(arrivals.device()));
  if (parts == 1) return {};
  const int64_t least = (grads.tokens + parts - 1) / parts;
  grads.part_tokens = (least + kStep - 1) / kStep * kStep;
  at::Tensor sums =
      at::empty({adapter_grad_work(type, grads).sums}, arrivals.options().dtype(at::kFloat));
  grads.partial_sums = sums.data_ptr<float>();
  grads.arrivals = reinterpret_cast<unsigned*>(arrivals.data_ptr<int32_t>());
  return sums;
}

void add_on_cuda(const std::vector<AdapterGrad>& grads, const at::Tensor& arrivals) {
  const at::Tensor& g = grads.front().g;
  const Launch launch(g);
  const std::vector<cuda::AdapterGrad> products = joined(grads);
  for (size_t first = 0; first < products.size(); first += cuda::kMaxAdapterGrads) {
    cuda::AdapterGrads some{};
    some.tokens = g.size(0);
    for (size_t i = first; i < products.size() && some.count < cuda::kMaxAdapterGrads; ++i)
      some.products[some.count++] = products[i];
    const at::Tensor sums = divide_tokens(cuda_type_of(g), arrivals, some);
    launch_adapter_grads(cuda_type_of(g), some, launch.stream());
    launch.check();
  }
}

}  // namespace

void add_adapter_grads_(const std::vector<AdapterGrad>& grads, const at::Tensor& arrivals) {
  const ProfileRange range("add_adapter_grads");
  if (grads.empty()) return;
  const at::Tensor& first = grads.front().g;
  for (const AdapterGrad& grad : grads) {
    require_operand(grad.out, first, at::kFloat);
    TORCH_CHECK(grad.g.dim() == 2 && grad.x.dim() == 2 && grad.g.size(0) == first.size(0) &&
                    grad.x.size(0) == first.size(0) && grad.out.size(0) == grad.g.size(1) &&
                    grad.out.size(1) == grad.x.size(1),
                "products of ", grad.g.sizes(), " and ", grad.x.sizes(), " into ",
                grad.out.sizes());
    for (const at::Tensor* operand : {&grad.g, &grad.x}) {
      TORCH_CHECK(operand->stride(1) == 1 && operand->device() == first.device() &&
                      operand->scalar_type() == first.scalar_type(),
                  "an operand of adapters' gradients is ", operand->scalar_type(), " on ",
                  operand->device());
    }
    if (!grad.norm.rstd.defined()) continue;
    require_on_cuda(first);
    require_operand(grad.norm.rstd, first, at::kFloat);
    require_numel(grad.norm.rstd, first.size(0));
    require_operand(grad.norm.weight, first, first.scalar_type());
    require_numel(grad.norm.weight, grad.x.size(1));
  }
  if (arrivals.defined()) require_operand(arrivals, first, at::kInt);
  if (first.is_cuda()) return add_on_cuda(grads, arrivals);
  for (const AdapterGrad& grad : grads) {
    TORCH_CHECK(grad.scale == 1, "on a CPU the scale must be applied to the operands");
    at::Tensor out = grad.out;
    add_matmul_tn_(out, grad.g, grad.x);
  }
}

}  // namespace sftrun::kernels
