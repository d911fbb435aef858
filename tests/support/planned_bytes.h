#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "sftrun/kernels/cpu_table.h"

namespace sftrun::test {

/// Shares of the measured bytes by which a plan may be off.
struct Tolerance {
  double below = 0, above = 0;
  int64_t extra = 0;  ///< bytes that are measured, and not planned
};

/// The plan holds for every processor, so it counts the working memory of our products with AVX-512.
/// Others compute with LibTorch's, which need less: there the plan is only an upper limit.
inline void expect_planned(int64_t planned, int64_t measured, const Tolerance& tolerance,
                           const std::string& what) {
  EXPECT_GE(static_cast<double>(planned + tolerance.extra),
            (1 - tolerance.below) * static_cast<double>(measured))
      << what;
  if (std::string_view(kernels::cpu_kernels().isa) != "avx512") return;
  EXPECT_LE(static_cast<double>(planned), (1 + tolerance.above) * static_cast<double>(measured))
      << what;
}

}  // namespace sftrun::test
