#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

#include "connections.h"
#include "sftrun/serve/http_server.h"

namespace sftrun::serve {

/// An error line, also where there is no memory for it.
void log_failure(const char* what, const std::exception& failure) noexcept;

/// Owns a descriptor.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Socket() { close(); }
  Socket& operator=(Socket&&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void close();

 private:
  int fd_;
};

/// Accepts the clients of a server, no more than it may have connections.
class Listener {
 public:
  /// Takes a client's socket, and closes it later.   @return false: it is closed already
  using Take = std::function<bool(int socket, const sockaddr* peer, socklen_t size)>;

  /// Listens on the host's first address.   @param connections must outlive this object
  /// @throws ConfigError for a host that is unknown, and for an address that is in use
  Listener(const HttpServer::Options& options, Connections& connections);
  uint16_t port() const { return port_; }
  /// Until `stop`. Adds each client to the connections; where they are at their limit, clients wait,
  /// and slow connections give way to them.
  void accept_clients(const Take& take);
  void stop();  ///< by any thread
  void close() { socket_.close(); }

 private:
  bool accept_one(const Take& take) noexcept;
  bool try_to_accept(const Take& take);
  void make_room();

  const HttpServer::Options& options_;
  Connections& connections_;
  const size_t max_connections_;
  Socket socket_;
  const uint16_t port_;
  std::atomic<bool> stops_{false};
};

}  // namespace sftrun::serve
