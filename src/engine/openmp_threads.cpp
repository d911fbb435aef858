#include "openmp_threads.h"

#include <ATen/Parallel.h>

#include <latch>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"

namespace sftrun::engine {

bool can_start_threads(int num_threads) {
  std::latch end(1);
  std::vector<std::jthread> threads;
  bool can_start = true;
  try {
    threads.reserve(static_cast<size_t>(num_threads));
    for (int i = 0; i < num_threads; ++i) threads.emplace_back([&end] { end.wait(); });
  } catch (const std::system_error&) {
    can_start = false;
  } catch (const std::bad_alloc&) {
    can_start = false;
  }
  end.count_down();
  return can_start;
}

void start_threads(std::optional<int> wanted, bool by_flag) {
  static int num_started = 0;  // a second probe would take what the first threads have
  const int num_threads = wanted.value_or(at::get_num_threads());
  if (num_threads == num_started) return;
  // OpenMP's, those of LibTorch's pool, which set_num_threads starts, and one that watches
  // (spinning.h). Without memory for its pool, LibTorch waits for ever.
  if (num_threads > 1 && !can_start_threads(2 * num_threads)) {
    throw OutOfMemoryError(
        fmt::format("cannot start {}", counted(num_threads, "CPU thread")),
        "starting the CPU threads",
        fmt::format("{}, or raise the limits on memory and processes (ulimit -v, ulimit -u)",
                    by_flag ? "lower --threads" : "set OMP_NUM_THREADS to a smaller number"));
  }
  if (wanted) at::set_num_threads(*wanted);
  // LibTorch's own loop, which also takes the memory of its variables of each thread.
  at::parallel_for(0, num_threads, 1, [](int64_t, int64_t) {});
  num_started = num_threads;
}

}  // namespace sftrun::engine
