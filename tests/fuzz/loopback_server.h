#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace sftrun::fuzz {

/// Answers each connection's request with the next of some replies, then closes it; without one it
/// closes it at once.
class LoopbackServer {
 public:
  LoopbackServer() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    constexpr int kBacklog = 16;
    const bool listens = ::bind(listener_, plain, size) == 0 &&
                         ::listen(listener_, kBacklog) == 0 &&
                         ::getsockname(listener_, plain, &size) == 0;
    if (!listens) std::abort();
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    std::thread([this] { serve(); }).detach();  // as long as the process
  }
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  const std::string& url() const { return url_; }
  void set_replies(std::vector<std::string> replies) {
    const std::lock_guard lock(mutex_);
    replies_ = std::move(replies);
    next_ = 0;
  }

 private:
  [[noreturn]] void serve() {
    for (;;) {
      const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) continue;
      std::string request(4096, '\0');
      size_t size = 0;
      while (request.find("\r\n\r\n") == std::string::npos && size < request.size()) {
        const ssize_t got = ::read(connection, request.data() + size, request.size() - size);
        if (got <= 0) break;
        size += static_cast<size_t>(got);
      }
      const std::string reply = take();
      (void)::send(connection, reply.data(), reply.size(), MSG_NOSIGNAL);
      ::close(connection);
    }
  }

  std::string take() {
    const std::lock_guard lock(mutex_);
    return next_ < replies_.size() ? replies_[next_++] : std::string();
  }

  int listener_ = -1;
  std::string url_;
  std::mutex mutex_;
  std::vector<std::string> replies_;
  size_t next_ = 0;
};

}  // namespace sftrun::fuzz
