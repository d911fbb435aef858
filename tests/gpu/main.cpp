#include <gtest/gtest.h>

#include <cstdio>

#include "support/cuda_kernels.h"

/// Everything that runs on a GPU beside the same on a CPU. By hand, or by `make gpu-check`: without
/// a GPU it ends with 2.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string missing = sftrun::test::load_cuda_kernels();
  if (!missing.empty()) {
    std::fprintf(stderr, "error: %s\n", missing.c_str());
    return 2;
  }
  return RUN_ALL_TESTS();
}
