#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>

namespace sftrun::test {

/// Largest |a - b| relative to the largest |b|, in fp64.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide_a = a.detach().to(at::kDouble), wide_b = b.detach().to(at::kDouble);
  return ((wide_a - wide_b).abs().max() / (wide_b.abs().max() + 1e-30)).item<double>();
}

/// The same dtype and the same bytes.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// A mismatch prints where it is worst and both values.
inline ::testing::AssertionResult close(const at::Tensor& actual, const at::Tensor& expected,
                                        double tolerance) {
  if (actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure()
           << "shapes differ: " << actual.sizes() << " and " << expected.sizes();
  }
  if (actual.numel() == 0) return ::testing::AssertionSuccess();
  const double error = relative_error(actual, expected);
  if (error <= tolerance) return ::testing::AssertionSuccess();
  const at::Tensor difference =
      (actual.detach().to(at::kDouble) - expected.detach().to(at::kDouble)).abs().flatten();
  const int64_t worst = difference.argmax().item<int64_t>();
  return ::testing::AssertionFailure()
         << "relative error " << error << " over " << tolerance << ", worst at flat index " << worst
         << ": " << actual.flatten()[worst].item<double>() << " instead of "
         << expected.flatten()[worst].item<double>();
}

/// Seeded normal values, the same on every machine.
inline at::Tensor normal(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  const at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  at::Generator seeded = generator;
  seeded.set_current_seed(seed);
  return at::randn(shape, seeded, at::kFloat).to(dtype);
}

/// fp32 products and reductions agree to about this; bf16 carries 8 bits.
inline double tolerance_for(at::ScalarType dtype) {
  return dtype == at::kFloat ? 2e-5 : 2e-2;
}

}  // namespace sftrun::test
