#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "sftrun/core/interruption.h"

namespace sftrun::data {

/// Calls `body(i)` for every i in [0, count) from up to `num_threads` threads. If calls throw, the
/// exception of the smallest i is rethrown, independent of timing: all calls before it are made,
/// later ones may be skipped. Each call is an interruption point.
/// @param block indices that a thread takes at a time: many where calls are short, as of records
template <typename Body>
void parallel_for(int64_t count, int num_threads, const Body& body, int64_t block = 32) {
  std::atomic<int64_t> next{0}, first_failure{count};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    for (;;) {
      const int64_t begin = next.fetch_add(block);
      const int64_t end = std::min(begin + block, count);
      for (int64_t i = begin; i < end; ++i) {
        if (i >= first_failure.load()) return;
        try {
          interruption_point();
          body(i);
        } catch (...) {
          const std::scoped_lock lock(failure_mutex);
          if (i < first_failure.load()) {
            first_failure = i;
            failure = std::current_exception();
          }
          return;
        }
      }
      if (end >= count) return;
    }
  };
  const int64_t useful = (count + block - 1) / block;
  const auto num_workers = std::clamp<int64_t>(num_threads, 1, std::max<int64_t>(useful, 1));
  {
    std::vector<std::jthread> helpers;
    try {
      for (int64_t i = 1; i < num_workers; ++i) helpers.emplace_back(work);
      // No memory for another stack: the running threads do the work
    } catch (const std::system_error&) {
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sftrun::data
