#include "block_product.h"

#include <ATen/native/CPUBlas.h>

#include <string_view>

#include "../row_kernels.h"

namespace sftrun::kernels {

bool block_product_is_compiled(at::ScalarType dtype) {
  static const bool has_avx512 = std::string_view(cpu_kernels().isa) == "isa_avx512";
  return has_avx512 &&
         (dtype == at::kFloat || (dtype == at::kBFloat16 && __builtin_cpu_supports("avx512bf16")));
}

bool block_product_serves(at::ScalarType dtype) {
  return (dtype == at::kFloat || dtype == at::kBFloat16) &&
         (block_product_is_compiled(dtype) || cpu_kernels().f32.matmul.blocks.multiply != nullptr);
}

void block_product(int64_t m, int64_t n, int64_t k, bool add, const float* a, int64_t a_stride,
                   const float* b, float* c) {
  if (block_product_is_compiled(at::kFloat))
    at::native::cpublas::brgemm(m, n, k, a_stride, n, n, add, a, b, c);
  else
    row_kernels<float>().matmul.blocks.multiply(m, n, k, add, a, a_stride, b, c);
}

void block_product(int64_t m, int64_t n, int64_t k, bool add, const uint16_t* a, int64_t a_stride,
                   const uint16_t* b, float* c) {
  if (block_product_is_compiled(at::kBFloat16)) {
    at::native::cpublas::brgemm(m, n, k, a_stride, n, n, add,
                                reinterpret_cast<const at::BFloat16*>(a),
                                reinterpret_cast<const at::BFloat16*>(b), c, /*is_vnni=*/true);
  } else {
    row_kernels<uint16_t>().matmul.blocks.multiply(m, n, k, add, a, a_stride, b, c);
  }
}

void end_block_products() {
  if (block_product_is_compiled(at::kFloat)) at::native::cpublas::brgemm_release();
}

}  // namespace sftrun::kernels
