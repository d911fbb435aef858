#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "sftrun/launch/launch_plan.h"
#include "sftrun/parallel/communicator.h"

namespace sftrun::test {

/// Threads, each with a part of a test. An exception in one of them fails the test: by itself it
/// would end the process with all other tests.
class TestThreads {
 public:
  ~TestThreads() { join(); }

  void start(std::function<void()> body) {
    threads_.emplace_back([body = std::move(body)] {
      try {
        body();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "a thread of the test ended with: " << error.what();
      }
    });
  }

  void join() { threads_.clear(); }

 private:
  std::vector<std::jthread> threads_;
};

/// Runs the ranks of a job as threads over Gloo on the loopback.
inline void run_ranks(int world_size, const std::function<void(parallel::Communicator&)>& body) {
  parallel::disable_flight_recorder();
  const int port = launch::pick_free_port();
  TestThreads ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.start([&, rank] {
      auto comm = parallel::Communicator::connect({rank, world_size, "127.0.0.1", port}, "gloo",
                                                  at::kCPU, {.timeout_s = 30});
      body(comm);
    });
  }
}

}  // namespace sftrun::test
