#include "sftrun/kernels/cuda_registry.h"

#include <gtest/gtest.h>

#include <string>

#include "sftrun/kernels/cuda_entry.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<int(int)> twice("twice_of_test");

int twice_of_library(int x) {
  return 2 * x;
}
int64_t wide_twice(int64_t x) {
  return 2 * x;
}
struct Longer {
  int64_t words[2];
};

CudaFunction with_next(CudaFunction function, CudaFunction* next) {
  function.next = next;
  return function;
}

TEST(CudaRegistry, NamesTheFirstDifferenceOfAnotherBuild) {
  EXPECT_NE(cuda_difference(nullptr), "");
  CudaFunction other = cuda_function("twice_of_test", wide_twice);
  // The other entries of the program are missing, too; those of its test files come in any order.
  const std::string difference = cuda_difference(&other);
  EXPECT_TRUE(difference.starts_with("it has no ") || difference == "its twice_of_test is another")
      << difference;
}

TEST(CudaRegistry, ComparesSizesOfArguments) {
  const CudaFunction one = cuda_function("f", static_cast<void (*)(const Longer&, int*)>(nullptr));
  EXPECT_EQ(one.argument_bytes, sizeof(Longer) + sizeof(int*));
  EXPECT_EQ(one.address, nullptr);
}

TEST(CudaRegistry, EntriesCallWhatTheLibraryHas) {
  EXPECT_ANY_THROW(twice(3)) << "before a library is loaded";
  CudaFunction other = cuda_function("twice_of_test", wide_twice);
  register_cuda_functions(&other);
  EXPECT_ANY_THROW(twice(3)) << "of another signature";
  CudaFunction same = cuda_function("twice_of_test", twice_of_library),
               first = with_next(cuda_function("unknown_to_the_engine", wide_twice), &same);
  register_cuda_functions(&first);
  EXPECT_EQ(twice(3), 6);
  EXPECT_TRUE(has_cuda_kernels());
}

}  // namespace
}  // namespace sftrun::kernels
