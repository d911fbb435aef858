#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

/// Products of one block on a CPU, by LibTorch's brgemm (oneDNN's batch-reduce GEMM) where the
/// processor has AVX-512, for bf16 AVX512_BF16; else, with AVX2, by `multiply_block`
/// (block_product_cpu.inl), which computes bf16 products in fp32.
namespace sftrun::kernels {

/// Whether there is a fast product for the dtype: fp32 and bf16, with AVX2 at least.
bool block_product_serves(at::ScalarType dtype);
/// Whether it is LibTorch's, which compiles code for each new shape at run time. Callers should use
/// few shapes then.
bool block_product_is_compiled(at::ScalarType dtype);

/// C [m, n] (+)= A [m, k] B [k, n]. The row stride of A is `a_stride`; B and C are contiguous; n is
/// a multiple of 16 and k > 0. For bf16 (uint16_t), k is even and B is in VNNI layout: [k / 2][n][2].
void block_product(int64_t m, int64_t n, int64_t k, bool add, const float* a, int64_t a_stride,
                   const float* b, float* c);
void block_product(int64_t m, int64_t n, int64_t k, bool add, const uint16_t* a, int64_t a_stride,
                   const uint16_t* b, float* c);
/// To be called by each thread after its last product: releases the processor's matrix unit, which
/// LibTorch's products may use.
void end_block_products();

}  // namespace sftrun::kernels
