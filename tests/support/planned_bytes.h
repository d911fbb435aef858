#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

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

/// oneDNN cuts matrices into blocks by the size of the second-level cache, and copies them: up to
/// 1.2 MB more were seen where a core has 2 MiB than where it has 1.25 MiB. The plan does not know it.
inline int64_t block_bytes_of_cache() {
  constexpr int64_t kPlannedFor = 5 << 18, kOfLarger = 3 << 19;  // 1.25 MiB, 1.5 MiB
  return sysconf(_SC_LEVEL2_CACHE_SIZE) > kPlannedFor ? kOfLarger : 0;
}

/// The plan holds for every processor, so it counts the working memory of our products with AVX-512.
/// Others compute with LibTorch's, which need less: there the plan is only an upper limit.
inline void expect_planned(int64_t planned, int64_t measured, const Tolerance& tolerance,
                           const std::string& what) {
  EXPECT_GE(static_cast<double>(planned + tolerance.extra + block_bytes_of_cache()),
            (1 - tolerance.below) * static_cast<double>(measured))
      << what;
  if (std::string_view(kernels::cpu_kernels().isa) != "avx512") return;
  EXPECT_LE(static_cast<double>(planned), (1 + tolerance.above) * static_cast<double>(measured))
      << what;
}

}  // namespace sftrun::test
