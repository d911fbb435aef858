#include <ATen/cuda/CUDAContext.h>

#include <algorithm>

#include "entries.h"
#include "launch_context.h"

/// Products of adapters and their gradients; copies of many matrices in one launch.
namespace sftrun::kernels::plugin {

namespace {

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
         grad.thin_stride == next.thin_stride && grad.parts < cuda::kMostGradParts &&
         grad.rank + next.rank <= cuda::most_grad_ranks(type_of(g)) &&
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
  constexpr int64_t kLeastTokens = 1024, kLeast = 3, kMost = 8;
  if (tiles == 0) return 1;
  const int64_t parts = std::min(2 * multiprocessors / tiles, tokens / kLeastTokens);
  return parts < kLeast ? 1 : std::min(parts, kMost);
}

/// Divides the tokens where `arrivals` has room for the tiles.   @return the partial sums
at::Tensor divide_tokens(cuda::Type type, const at::Tensor& arrivals, cuda::AdapterGrads& grads) {
  static_assert(cuda::kGradColumns == kGradTileColumns);
  constexpr int64_t kStep = 64;
  grads.part_tokens = grads.tokens;
  const int64_t tiles = cuda::work_of(type, grads).tiles;
  if (!arrivals.defined() || arrivals.numel() < tiles) return {};
  const int64_t parts =
      token_parts(tiles, grads.tokens,
                  at::cuda::getDeviceProperties(arrivals.device().index())->multiProcessorCount);
  if (parts == 1) return {};
  const int64_t least = (grads.tokens + parts - 1) / parts;
  grads.part_tokens = (least + kStep - 1) / kStep * kStep;
  at::Tensor sums =
      at::empty({cuda::work_of(type, grads).sums}, arrivals.options().dtype(at::kFloat));
  grads.partial_sums = sums.data_ptr<float>();
  grads.arrivals = reinterpret_cast<unsigned*>(arrivals.data_ptr<int32_t>());
  return sums;
}

}  // namespace

void add_adapter_grads(const std::vector<AdapterGrad>& grads, const at::Tensor& arrivals) {
  const at::Tensor& g = grads.front().g;
  const Launch launch(g);
  const std::vector<cuda::AdapterGrad> products = joined(grads);
  for (size_t first = 0; first < products.size(); first += cuda::kMostAdapterGrads) {
    cuda::AdapterGrads some{};
    some.tokens = g.size(0);
    for (size_t i = first; i < products.size() && some.count < cuda::kMostAdapterGrads; ++i)
      some.products[some.count++] = products[i];
    const at::Tensor sums = divide_tokens(type_of(g), arrivals, some);
    cuda::launch_adapter_grads(type_of(g), some, launch.stream());
    launch.check();
  }
}

void add_low_rank(const at::Tensor& y, const at::Tensor& low, const at::Tensor& factor,
                  const at::Tensor& base) {
  const bool is_transposed = factor.stride(1) != 1;
  const Launch launch(y);
  cuda::launch_low_rank_sum(type_of(y),
                            {.y = y.data_ptr(),
                             .base = base.defined() ? base.const_data_ptr() : nullptr,
                             .low = low.const_data_ptr(),
                             .factor = factor.const_data_ptr(),
                             .rows = y.size(0),
                             .columns = y.size(1),
                             .rank = low.size(1),
                             .y_stride = y.stride(0),
                             .base_stride = base.defined() ? base.stride(0) : 0,
                             .low_stride = low.stride(0),
                             .factor_stride = factor.stride(is_transposed ? 1 : 0),
                             .is_transposed = is_transposed},
                            launch.stream());
  launch.check();
}

at::Tensor copy_table(const std::vector<MatrixCopy>& copies) {
  std::vector<cuda::MatrixPlacement> placements;
  for (const MatrixCopy& copy : copies) {
    TORCH_CHECK(copy.from.is_contiguous() && copy.from.sizes() == copy.to.sizes() &&
                copy.to.stride(1) == 1 && copy.from.scalar_type() == copy.to.scalar_type());
    placements.push_back({copy.from.const_data_ptr(), copy.to.data_ptr(), copy.from.size(0),
                          copy.from.size(1), copy.to.stride(0), static_cast<float>(copy.scale)});
  }
  const auto bytes = static_cast<int64_t>(placements.size() * sizeof(cuda::MatrixPlacement));
  return at::from_blob(placements.data(), {bytes}, at::kByte).to(copies.front().to.device());
}

void move_table(const at::Tensor& table, int64_t from, int64_t to) {
  // Added on the device: a copy from the host would wait, or need memory that stays as it is.
  constexpr auto kWord = static_cast<int64_t>(sizeof(int64_t));
  static_assert(sizeof(cuda::MatrixPlacement) % kWord == 0 && sizeof(void*) == kWord);
  const at::Tensor words =
      table.view(at::kLong).view({-1, static_cast<int64_t>(sizeof(cuda::MatrixPlacement)) / kWord});
  words.select(1, offsetof(cuda::MatrixPlacement, from) / kWord).add_(from);
  words.select(1, offsetof(cuda::MatrixPlacement, to) / kWord).add_(to);
}

void copy_matrices(const at::Tensor& table, const at::Tensor& like) {
  const Launch launch(table);
  cuda::launch_copy_matrices(
      type_of(like), static_cast<const cuda::MatrixPlacement*>(table.const_data_ptr()),
      table.numel() / static_cast<int64_t>(sizeof(cuda::MatrixPlacement)), launch.stream());
  launch.check();
}

}  // namespace sftrun::kernels::plugin
