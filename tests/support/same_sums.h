#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string_view>

#include "sftrun/kernels/cpu_table.h"
#include "support/tensors.h"

namespace sftrun::test {

/// Whether our kernels compute products (with AVX-512). On other CPUs LibTorch's do, whose sums may
/// depend on the number of threads and on where operands lie in memory.
inline bool has_own_products() {
  return std::string_view(kernels::cpu_kernels().isa).find("avx512") != std::string_view::npos;
}

/// Products of different numbers of threads: equal to the bit, or nearly so where LibTorch computes.
inline ::testing::AssertionResult same_sums(const at::Tensor& actual, const at::Tensor& expected) {
  if (!has_own_products()) return close(actual, expected, 2e-6);
  if (at::equal(actual, expected)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "not the same to the bit";
}

}  // namespace sftrun::test
