#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string_view>

#include "sftrun/kernels/cpu_table.h"
#include "support/tensors.h"

namespace sftrun::test {

/// Products of different numbers of threads: equal to the bit where our kernels compute them (with
/// AVX-512). On other CPUs LibTorch's do, whose sums may depend on the threads.
inline ::testing::AssertionResult same_sums(const at::Tensor& actual, const at::Tensor& expected) {
  const std::string_view isa = kernels::cpu_kernels().isa;
  if (isa.find("avx512") == std::string_view::npos) return close(actual, expected, 2e-6);
  if (at::equal(actual, expected)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "not the same to the bit";
}

}  // namespace sftrun::test
