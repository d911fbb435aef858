#include "listener.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"

namespace sftrun::serve {
namespace {

[[noreturn]] void throw_not_listening(const HttpServer::Options& options, int error) {
  std::string fix = "give another address with --host and --port";
  if (error == EADDRINUSE)
    fix = fmt::format("stop the program that uses it, or give --port {}", options.port + 1);
  if (error == EACCES) fix = "ports below 1024 need root: give --port 8000";
  if (error == EADDRNOTAVAIL) fix = "give an address of this machine, or 0.0.0.0 for all of them";
  throw ConfigError(
      fmt::format("cannot listen on {}:{}: {}", options.host, options.port, std::strerror(error)),
      "--host and --port", fix);
}

/// Listens on the host's first address.
Socket listen_on(const HttpServer::Options& options) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const std::string port = std::to_string(options.port);
  if (const int error = ::getaddrinfo(options.host.c_str(), port.c_str(), &hints, &found)) {
    throw ConfigError(
        fmt::format("unknown host {}: {}", excerpt(options.host), ::gai_strerror(error)), "--host",
        "give 127.0.0.1, or 0.0.0.0 for all addresses of this machine");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  constexpr int kBacklog = 1024;  // clients that wait; Linux limits it to net.core.somaxconn
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (socket.get() < 0 || ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(socket.get(), kBacklog) != 0)
    throw_not_listening(options, errno);
  return socket;
}

uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

/// Connections that the process may have: it raises its limit on open files, as far as it may.
size_t affordable_connections(size_t asked) {
  constexpr rlim_t kOthers = 256;  // files of the model, of LibTorch
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return asked;
  const rlim_t wanted = asked + kOthers;
  if (limit.rlim_cur < wanted && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= wanted) return asked;
  const rlim_t most = limit.rlim_cur - std::min(limit.rlim_cur / 2, kOthers);
  log::warn("{} connections at a time, not {}: raise the limit on open files (ulimit -n)", most,
            asked);
  return most;
}

}  // namespace

void log_failure(const char* what, const std::exception& failure) noexcept {
  try {
    log::error("{} failed: {}", what, failure.what());
  } catch (...) {  // no memory for that
  }
}

void Socket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

/// libmicrohttpd would close connections beyond its limit, so it gets only as many as there may be.
Listener::Listener(const HttpServer::Options& options, Connections& connections)
    : options_(options),
      connections_(connections),
      max_connections_(affordable_connections(options.max_connections)),
      socket_(listen_on(options)),
      port_(port_of(socket_.get())) {}

void Listener::accept_clients(const Take& take) {
  constexpr int kBetweenLooksMs = 200;
  while (!stops_) {
    connections_.end_late(options_.max_request_time, options_.max_send_time);
    const bool is_full = connections_.size() >= max_connections_;
    std::array<pollfd, 2> ready{{{socket_.get(), POLLIN, 0}, {connections_.changed(), POLLIN, 0}}};
    ::poll(ready.data(), ready.size(), kBetweenLooksMs);
    connections_.clear();
    if (ready[0].revents == 0 || stops_) continue;
    if (is_full || !accept_one(take)) make_room();
  }
}

void Listener::stop() {
  stops_ = true;
  connections_.wake();
}

bool Listener::accept_one(const Take& take) noexcept {
  try {
    return try_to_accept(take);
  } catch (const std::bad_alloc& error) {
    log_failure("a connection", error);
    return false;
  }
}

/// @return false: there is no descriptor for it
bool Listener::try_to_accept(const Take& take) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  auto* peer = reinterpret_cast<sockaddr*>(&address);
  Socket client(::accept4(socket_.get(), peer, &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (client.get() < 0)
    return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  connections_.add(client.get());
  const int socket = client.release();  // `take` closes it
  if (!take(socket, peer, size)) connections_.remove(socket);
  return true;
}

/// Ends a slow connection, and waits for the end of any.
void Listener::make_room() {
  constexpr int kMaxWaitMs = 50;
  connections_.end_slowest(options_.patience);
  pollfd changed{connections_.changed(), POLLIN, 0};
  ::poll(&changed, 1, kMaxWaitMs);
}

}  // namespace sftrun::serve
