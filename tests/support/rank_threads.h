#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "sftrun/parallel/communicator.h"

namespace sftrun::test {

inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  socklen_t length = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return ntohs(address.sin_port);
}

/// Runs the ranks of a job as threads over Gloo on the loopback.
inline void run_ranks(int world_size, const std::function<void(parallel::Communicator&)>& body) {
  // LibTorch's flight recorder is one for the process and adds a process group's entry without a
  // lock: groups of several threads, which only tests have, would race there.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  const int port = free_port();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      auto comm = parallel::Communicator::connect({rank, world_size, "127.0.0.1", port}, "gloo",
                                                  at::kCPU, {.timeout_s = 30});
      body(comm);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace sftrun::test
