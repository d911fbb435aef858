#include "sftrun/core/for_each_together.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace sftrun {

void for_each_together(size_t count, size_t num_threads, std::atomic<bool>& has_failed,
                       const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;  // guards `failure`
  const auto run = [&] {
    for (size_t i = next++; i < count && !has_failed; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (failure == nullptr) failure = std::current_exception();
        has_failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const size_t num_used = std::min(count, std::max<size_t>(num_threads, 1));
    for (size_t i = 0; i < num_used; ++i) threads.emplace_back(run);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace sftrun
