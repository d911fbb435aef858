#include "sftrun/core/plural.h"

#include <gtest/gtest.h>

namespace sftrun {
namespace {

TEST(Plural, OnlyOneIsSingular) {
  EXPECT_EQ(plural("tensor", size_t{1}), "tensor");
  EXPECT_EQ(plural("tensor", 0), "tensors");
  EXPECT_EQ(counted(int64_t{1}, "step"), "1 step");
  EXPECT_EQ(counted(-1, "step"), "-1 steps");
  EXPECT_EQ(counted(20, "packed sequence"), "20 packed sequences");
}

}  // namespace
}  // namespace sftrun
