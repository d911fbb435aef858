#include "entries.h"
#include "launch_context.h"

/// Gradients of adapters; copies of many matrices in one launch.
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
          .out = grad.out.data_ptr<float>(),
          .wide_step = grad.out.stride(g_is_wide ? 0 : 1),
          .rank_step = grad.out.stride(g_is_wide ? 1 : 0),
          .scale = static_cast<float>(grad.scale)};
}

}  // namespace

void add_adapter_grads(const std::vector<AdapterGrad>& grads) {
  const at::Tensor& g = grads.front().g;
  const Launch launch(g);
  for (size_t first = 0; first < grads.size(); first += cuda::kMostAdapterGrads) {
    cuda::AdapterGrads some{};
    some.tokens = g.size(0);
    for (size_t i = first; i < grads.size() && some.count < cuda::kMostAdapterGrads; ++i)
      some.products[some.count++] = adapter_grad(grads[i]);
    cuda::launch_adapter_grads(type_of(g), some, launch.stream());
    launch.check();
  }
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

void copy_matrices(const at::Tensor& table, const at::Tensor& like) {
  const Launch launch(table);
  cuda::launch_copy_matrices(
      type_of(like), static_cast<const cuda::MatrixPlacement*>(table.const_data_ptr()),
      table.numel() / static_cast<int64_t>(sizeof(cuda::MatrixPlacement)), launch.stream());
  launch.check();
}

}  // namespace sftrun::kernels::plugin
