#include "sftrun/kernels/cuda_archs.h"

#include <gtest/gtest.h>

namespace sftrun::kernels {
namespace {

TEST(CudaArchs, MachineCodeRunsOnLaterMinorVersionsOfItsMajor) {
  EXPECT_TRUE(cuda_code_runs_on("80-real", 8, 0));
  EXPECT_TRUE(cuda_code_runs_on("80-real", 8, 9));
  EXPECT_FALSE(cuda_code_runs_on("86-real", 8, 0));
  EXPECT_FALSE(cuda_code_runs_on("80-real", 9, 0));
}

TEST(CudaArchs, PtxRunsOnEverythingLater) {
  EXPECT_TRUE(cuda_code_runs_on("80-virtual", 12, 1));
  EXPECT_FALSE(cuda_code_runs_on("90-virtual", 8, 9));
  EXPECT_TRUE(cuda_code_runs_on("80", 10, 0)) << "without a suffix: both";
}

TEST(CudaArchs, ArchitectureSpecificCodeRunsOnOneVersionOnly) {
  EXPECT_TRUE(cuda_code_runs_on("90a", 9, 0));
  EXPECT_TRUE(cuda_code_runs_on("90a-real", 9, 0));
  EXPECT_FALSE(cuda_code_runs_on("90a", 10, 0));
  EXPECT_FALSE(cuda_code_runs_on("100a-real", 10, 3));
}

TEST(CudaArchs, AReleaseRunsOnEveryCardFromAmpereOn) {
  constexpr const char* kRelease = "80-real;86-real;89-real;90a-real;100-real;120-real;120-virtual";
  for (const auto& [major, minor] : {std::pair(8, 0),
                                     {8, 6},
                                     {8, 7},
                                     {8, 9},
                                     {9, 0},
                                     {10, 0},
                                     {10, 3},
                                     {12, 0},
                                     {12, 1},
                                     {13, 0}}) {
    EXPECT_TRUE(cuda_code_runs_on(kRelease, major, minor)) << major << '.' << minor;
  }
  EXPECT_FALSE(cuda_code_runs_on(kRelease, 7, 5));
  EXPECT_FALSE(cuda_code_runs_on("", 9, 0));
  EXPECT_FALSE(cuda_code_runs_on("native,all", 9, 0));
}

}  // namespace
}  // namespace sftrun::kernels
