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
  EXPECT_EQ(the_first(1, "record"), "the first record");
  EXPECT_EQ(the_first(8, "record"), "the first 8 records");
}

TEST(Plural, OfOtherEndings) {
  EXPECT_EQ(counted(2, "process"), "2 processes");
  EXPECT_EQ(counted(1, "process"), "1 process");
  EXPECT_EQ(counted(2, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(counted(2, "matrix"), "2 matrices");
}

}  // namespace
}  // namespace sftrun
