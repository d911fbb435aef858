#include <ATen/ATen.h>

#include <cstddef>

#include "copy/copy_matrices_launch.h"
#include "cuda/launch.h"
#include "sftrun/kernels/copy_matrices.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_copy_matrices)> launch_copy_matrices("launch_copy_matrices");

}  // namespace

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
  launch_copy_matrices(
      cuda_type_of(like), static_cast<const cuda::MatrixPlacement*>(table.const_data_ptr()),
      table.numel() / static_cast<int64_t>(sizeof(cuda::MatrixPlacement)), launch.stream());
  launch.check();
}

}  // namespace sftrun::kernels
