#pragma once

#include <cmath>

#include "cuda/types.h"

/// How far from fp64 a kernel's numbers may be: what rounding accounts for, so that a wrong term of
/// any size shows. An element's error is
///
///     one rounding to the type it is stored as
///   + `roundings` roundings of fp32, each of numbers as large as the terms it is made of
///
/// "As large as the terms" (`Exact::size`): where a - b cancels, the error is that of a and b.
namespace sftrun::kernels::cuda::test {

inline constexpr double kUnit = 0x1p-24;  ///< fp32: half a step, of the number

/// A number in fp64, and the sum of its terms' magnitudes.
struct Exact {
  double value, size;
};

/// Half a step of the type at its widest: 24, 8 and 11 bits.
inline double half_step(Type type, double value) {
  const double relative = type == Type::kFloat32    ? kUnit
                          : type == Type::kBFloat16 ? 0x1p-8
                                                    : 0x1p-11;
  // fp16's steps do not shrink below 2^-14; fp32 and bf16 may have no values below 2^-126.
  const double least = type == Type::kFloat16 ? 0x1p-25 : 0x1p-126;
  return std::fmax(relative * std::fabs(value), least);
}

inline double bound(Type type, const Exact& exact, double roundings) {
  const double arithmetic = roundings * kUnit * exact.size;
  return arithmetic + half_step(type, std::fabs(exact.value) + arithmetic);
}

/// Of the CPU's kernels: their exp and tanh are good to a few last places, and each side rounds
/// once to the type.
inline constexpr double kCpuTimes = 4;
/// Its exp is no smaller than e^-87.
inline constexpr double kCpuLeast = 1e-35;
/// In roundings, for close_to_cpu: what is between a norm and a rotation the CPU's kernels round to
/// the type, which changes each term by half a step of its own.
inline double between_on_cpu(Type type) {
  return type == Type::kFloat32 ? 0 : half_step(type, 1) / kUnit / kCpuTimes;
}

// Roundings of each kernel.

/// Sums over a row: a thread adds every 256th, the block its 256 threads' sums by fives and eights.
/// Of a thread's errors half are counted as if they went one way.
inline double of_sum(int64_t n) {
  return 8 + static_cast<double>(n) / 512;
}
inline double of_norm(int64_t hidden) {
  return 8 + of_sum(hidden);  // a root, a quotient, three products
}
inline constexpr double kRope = 3;  // two products, one sum
/// expf is good to 2 units, its argument's error counts as often as the argument is large (in the
/// sizes), then a sum, a quotient and four products.
inline constexpr double kGated = 12;
/// expf and logf, each term's argument in the sizes, and the sum over the vocabulary.
inline double of_loss(int64_t vocab) {
  return 8 + of_sum(vocab);
}
/// A moment: three operations; the parameter: a root, two quotients, two sums, two products.
inline constexpr double kAdamW = 10;
/// Eight of a group by one sum each, then groups by a thread, by lanes and by warps.
inline double of_dot(int64_t n) {
  return 12 + static_cast<double>(n) / 512;
}
/// Sums of squares: fp32 over 16, fp64 from there on.
inline constexpr double kSquares = 18;

}  // namespace sftrun::kernels::cuda::test
