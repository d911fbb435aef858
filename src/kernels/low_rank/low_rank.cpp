#include <ATen/ATen.h>

#include "sftrun/kernels/cuda_registry.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

constexpr int64_t kMostRank = 64;

/// Whether every row of 16-bit elements begins at 16 bytes and has a multiple of 8 of them.
/// @param x either of its strides is 1
bool has_aligned_rows(const at::Tensor& x) {
  constexpr int64_t kEights = 8;
  const int64_t along = x.stride(1) == 1 ? 1 : 0;
  return x.stride(along) == 1 && x.size(along) % kEights == 0 &&
         x.stride(1 - along) % kEights == 0 &&
         reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

/// Whether our kernel is the faster. Measured on an H100: cuBLAS, which divides the sums among
/// blocks, takes about 17 us at least, but reads large matrices faster (bench/adapter_bandwidth).
bool kernel_serves(const at::Tensor& x, const at::Tensor& factor, const at::Tensor& out) {
  constexpr int64_t kFewRows = 1024, kMany = 12 << 20;
  return x.is_cuda() && x.scalar_type() != at::kFloat && x.size(0) >= kFewRows &&
         x.numel() <= kMany && factor.size(1) <= kMostRank && has_aligned_rows(x) &&
         has_aligned_rows(factor) && has_aligned_rows(out);
}

void require_one_type(const at::Tensor& x, std::initializer_list<const at::Tensor*> operands) {
  for (const at::Tensor* operand : operands)
    TORCH_CHECK(operand->device() == x.device() && operand->scalar_type() == x.scalar_type(),
                "an operand of a product of low rank is ", operand->scalar_type(), " on ",
                operand->device());
}

}  // namespace

at::Tensor low_rank_product(const at::Tensor& x, const at::Tensor& factor, at::Tensor out,
                            bool wants_copy) {
  const ProfileRange range("low_rank_product");
  TORCH_CHECK(x.dim() == 2 && factor.dim() == 2 && x.size(1) == factor.size(0) && out.dim() == 2 &&
                  out.size(0) == x.size(0) && out.size(1) == factor.size(1) && x.stride(1) == 1 &&
                  out.stride(1) == 1,
              "product of ", x.sizes(), " and ", factor.sizes(), " into ", out.sizes());
  require_one_type(x, {&factor, &out});
  if (!kernel_serves(x, factor, out)) {
    at::mm_out(out, x, factor);
    return wants_copy ? out.contiguous() : at::Tensor();
  }
  at::Tensor copy;
  if (wants_copy) copy = at::empty(out.sizes(), out.options());
  cuda_kernels().low_rank_product(x, factor, out, copy);
  return copy;
}

void add_low_rank_(at::Tensor y, const at::Tensor& low, const at::Tensor& factor,
                   const at::Tensor& base) {
  const ProfileRange range("add_low_rank");
  TORCH_CHECK(y.dim() == 2 && low.dim() == 2 && factor.dim() == 2 && y.stride(1) == 1 &&
                  low.stride(1) == 1 && low.size(0) == y.size(0) && low.size(1) == factor.size(0) &&
                  factor.size(1) == y.size(1),
              "product of ", low.sizes(), " and ", factor.sizes(), " added to ", y.sizes());
  TORCH_CHECK(!base.defined() || (base.sizes() == y.sizes() && base.stride(1) == 1), "a base of ",
              base.sizes(), " added to ", y.sizes());
  require_one_type(y, {&low, &factor, base.defined() ? &base : &low});
  constexpr int64_t kMostRows = 64 * 65535;
  if (y.is_cuda() && y.scalar_type() != at::kFloat && low.size(1) <= kMostRank &&
      y.size(0) <= kMostRows && has_aligned_rows(y) && has_aligned_rows(low) &&
      has_aligned_rows(factor) && (!base.defined() || has_aligned_rows(base)))
    return cuda_kernels().add_low_rank(y, low, factor, base);
  if (base.defined()) y.add_(base);
  y.addmm_(low, factor);
}

}  // namespace sftrun::kernels
