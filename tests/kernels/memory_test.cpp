#include "sftrun/kernels/memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <iostream>
#include <vector>

#include "sftrun/observe/system.h"

namespace sftrun::kernels {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsGlibcsMalloc = false;
#else
constexpr bool kIsGlibcsMalloc = true;
#endif

constexpr int64_t kMiB = 1 << 20;

TEST(CpuAllocator, CountsReusesAndAligns) {
  install_cpu_allocator();
  const MemoryStats before = cpu_memory_stats();
  constexpr int64_t kBytes = 1 << 20;
  const void* address = nullptr;
  {
    const at::Tensor block = at::empty({kBytes}, at::kByte);
    address = block.data_ptr();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % 64, 0U);
    EXPECT_GE(cpu_memory_stats().allocated_bytes, before.allocated_bytes + kBytes);
  }
  EXPECT_EQ(cpu_memory_stats().allocated_bytes, before.allocated_bytes);
  const at::Tensor again = at::empty({kBytes}, at::kByte);
  EXPECT_EQ(again.data_ptr(), address);
  EXPECT_EQ(at::empty({0}).numel(), 0);
  reset_cpu_peak();
  { const at::Tensor large = at::empty({4 * kBytes}, at::kByte); }
  EXPECT_GE(cpu_memory_stats().peak_bytes, cpu_memory_stats().allocated_bytes + 4 * kBytes);
}

TEST(CpuAllocator, CountsNoRefusedRequest) {
  if (!kIsGlibcsMalloc) GTEST_SKIP() << "sanitizers end the process for a request of this size";
  install_cpu_allocator();
  const MemoryStats before = cpu_memory_stats();
  EXPECT_THROW(at::empty({int64_t{1} << 50}, at::kByte), c10::OutOfMemoryError);
  EXPECT_EQ(cpu_memory_stats().allocated_bytes, before.allocated_bytes);
  EXPECT_EQ(cpu_memory_stats().peak_bytes, before.peak_bytes);
}

/// Runs `check` in a process of its own, where no other test has needed more or left blocks behind.
void expect_in_own_process(bool (*check)()) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(check() ? EXIT_SUCCESS : EXIT_FAILURE),
              testing::ExitedWithCode(EXIT_SUCCESS), ".");
}

bool uses_larger_blocks_for_a_little_less() {
  install_cpu_allocator();
  const void* address = at::empty({48 * kMiB}, at::kByte).data_ptr();
  const uint64_t before = cpu_memory_stats().allocated_bytes;
  const at::Tensor less = at::empty({43 * kMiB}, at::kByte);
  const bool counts_what_it_uses = cpu_memory_stats().allocated_bytes < before + 48 * kMiB,
             is_the_block = less.data_ptr() == address;
  const void* again = at::empty({48 * kMiB}, at::kByte).data_ptr();
  const bool is_too_large = at::empty({34 * kMiB}, at::kByte).data_ptr() != again;
  std::cerr << counts_what_it_uses << is_the_block << is_too_large << '\n';
  return counts_what_it_uses && is_the_block && is_too_large;
}

TEST(CpuAllocatorDeathTest, UsesLargerBlocksForALittleLess) {
  expect_in_own_process(uses_larger_blocks_for_a_little_less);
}

int64_t resident_bytes() {
  return static_cast<int64_t>(observe::process_memory().resident_bytes);
}

/// What is resident after the first tensor, whose operator loads code.
int64_t resident_at_start() {
  install_cpu_allocator();
  at::ones({kMiB}, at::kByte);
  return resident_bytes();
}

bool holds_at_most(int64_t bytes, int64_t before) {
  const int64_t held = resident_bytes() - before;
  std::cerr << "holds " << held << " bytes, at most " << bytes << " expected\n";
  return held <= bytes;
}

/// Micro-batches that become longer: what the short ones needed is given back.
bool holds_the_longest_only() {
  const int64_t before = resident_at_start();
  constexpr int64_t kTensors = 8, kLongest = 16;
  for (int64_t length = 4; length <= kLongest; ++length) {
    std::vector<at::Tensor> kept;
    for (int64_t i = 0; i < kTensors; ++i) kept.push_back(at::ones({length * kMiB}, at::kByte));
  }
  return holds_at_most(2 * kTensors * kLongest * kMiB, before);  // 1040 MiB if all were kept
}

TEST(CpuAllocatorDeathTest, GivesBackBlocksOfOtherLengths) {
  expect_in_own_process(holds_the_longest_only);
}

/// Blocks in glibc's heap, each between two that are in use.
bool gives_back_pages_within_the_heap() {
  ::mallopt(M_MMAP_THRESHOLD, 32 * kMiB);
  const int64_t before = resident_at_start();
  std::vector<at::Tensor> freed, between;
  for (int i = 0; i < 32; ++i) {
    freed.push_back(at::ones({4 * kMiB}, at::kByte));
    between.push_back(at::ones({60000}, at::kByte));
  }
  freed.clear();
  std::vector<at::Tensor> longer;
  for (int i = 0; i < 16; ++i) longer.push_back(at::ones({8 * kMiB}, at::kByte));
  return holds_at_most(192 * kMiB, before);  // 128 MiB needed, 256 if the pages stayed
}

TEST(CpuAllocatorDeathTest, GivesBackPagesBetweenBlocksInUse) {
  if (!kIsGlibcsMalloc) GTEST_SKIP() << "about glibc's heap, which sanitizers replace";
  expect_in_own_process(gives_back_pages_within_the_heap);
}

}  // namespace
}  // namespace sftrun::kernels
