#include "openmp_threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>

#include "sftrun/core/error.h"

namespace sftrun::engine {
namespace {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which take terabytes of it

/// For this process: so much more than it has.
void limit_address_space(rlim_t more_bytes) {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + more_bytes;
  const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(9);
}

constexpr rlim_t kLittle = 1 << 20;
constexpr unsigned kMaxSeconds = 60;

TEST(OpenMpThreadsDeathTest, NoMemoryForThemIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // threads of other tests are not in a fork
  const auto start = [](bool by_flag, const char* fix) {
    ::alarm(kMaxSeconds);
    limit_address_space(kLittle);
    try {
      start_threads(8, by_flag);
    } catch (const OutOfMemoryError& error) {
      ::_exit(error.fix().starts_with(fix) ? 7 : 8);
    }
    ::_exit(0);
  };
  EXPECT_EXIT(start(/*by_flag=*/true, "lower --threads"), ::testing::ExitedWithCode(7), "^$");
  EXPECT_EXIT(start(/*by_flag=*/false, "set OMP_NUM_THREADS"), ::testing::ExitedWithCode(7), "^$");
}

TEST(OpenMpThreadsDeathTest, ALaterLoopNeedsNoMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto compute = [] {
    ::alarm(kMaxSeconds);
    start_threads(8, /*by_flag=*/true);
    limit_address_space(kLittle);
    std::atomic<int64_t> sum{0};
    at::parallel_for(0, 8, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    ::_exit(sum == 8 ? 7 : 8);
  };
  EXPECT_EXIT(compute(), ::testing::ExitedWithCode(7), "^$");
}

#endif

}  // namespace
}  // namespace sftrun::engine
