#include "sftrun/core/memory_reserve.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <thread>

#include "sftrun/core/exact_json.h"
#include "sftrun/core/json_memory.h"

namespace sftrun {
namespace {

constexpr size_t kMib = size_t{1} << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;  // their shadow needs more addresses than any limit leaves
#else
constexpr bool kIsSanitized = false;
#endif

constexpr const char* kHolds = "it holds";

[[noreturn]] void end(bool holds) {
  if (holds && ::write(STDERR_FILENO, kHolds, std::strlen(kHolds)) < 0) holds = false;
  std::_Exit(holds ? 0 : 1);
}

/// Of this process, from now on.   @param more than it has already
void limit_memory(size_t more) {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + more;
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_AS, &limit);
}

/// Whether so much can be had.
bool can_take(size_t bytes) {
  try {
    ::operator delete(::operator new(bytes));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

class WithoutMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kIsSanitized) GTEST_SKIP() << "memory cannot be limited under sanitizers";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_F(WithoutMemory, JsonIsEmptied) {
  EXPECT_EXIT(
      {
        ExactJson list = ExactJson::array();
        for (int i = 0; i < 1'000'000; ++i) list.push_back(i);
        limit_memory(4 * kMib);  // of 16 MiB that the list of its parts would take
        empty_json(list);
        end(list.empty());
      },
      ::testing::ExitedWithCode(0), kHolds);
}

TEST_F(WithoutMemory, WhatWasReadIsDestroyed) {
  EXPECT_EXIT(
      {
        std::string text = "[1";
        for (int i = 0; i < 3'000'000; ++i) text += ",1";
        limit_memory(60 * kMib);  // the list grows from 32 to 64 MiB
        try {
          parse_exact_json(text);
        } catch (const std::bad_alloc&) {
          end(true);
        }
        end(false);
      },
      ::testing::ExitedWithCode(0), kHolds);
}

/// Its destructor takes memory, as that of nlohmann's JSON values does.
struct TakesMemory {
  ~TakesMemory() { ::operator delete(::operator new(4 * kMib)); }
};

/// @return whether the process survives it
bool fails_and_goes_on() {
  try {
    const TakesMemory taker;
    ::operator delete(::operator new(64 * kMib));
  } catch (const std::bad_alloc&) {
    return true;
  }
  return false;
}

TEST_F(WithoutMemory, DestructorsGetTheReserve) {
  EXPECT_EXIT(
      {
        MemoryReserve reserve(8 * kMib);
        limit_memory(2 * kMib);
        const bool is_kept = !can_take(6 * kMib) && reserve.is_full();
        const bool goes_on = fails_and_goes_on() && !reserve.is_full();
        reserve.refill();
        end(is_kept && goes_on && reserve.is_full());
      },
      ::testing::ExitedWithCode(0), kHolds);
}

TEST_F(WithoutMemory, DestructorsGetItInHandlers) {
  EXPECT_EXIT(
      {
        const MemoryReserve reserve(8 * kMib);
        limit_memory(2 * kMib);
        try {
          ::operator delete(::operator new(64 * kMib));
        } catch (const std::bad_alloc&) {
          const TakesMemory taker;
        }
        end(!MemoryReserve::is_full());
      },
      ::testing::ExitedWithCode(0), kHolds);
}

TEST_F(WithoutMemory, DestructorsWaitForTheMemoryOfOtherThreads) {
  EXPECT_EXIT(
      {
        MemoryReserve reserve(2 * kMib);
        void* const taken = std::malloc(8 * kMib);
        std::thread other([&] {
          while (reserve.is_full()) std::this_thread::yield();
          std::free(taken);
        });
        limit_memory(1 * kMib);
        const bool goes_on = fails_and_goes_on();
        other.join();
        end(goes_on);
      },
      ::testing::ExitedWithCode(0), kHolds);
}

}  // namespace
}  // namespace sftrun
