#include "connections.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>

#include "sftrun/core/error.h"

namespace sftrun::serve {

Connections::Connections() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (event_ < 0) {
    throw DeviceError("the HTTP server cannot start: it cannot open a file descriptor", {},
                      "raise the limit on open files (ulimit -n)");
  }
}

Connections::~Connections() {
  ::close(event_);
}

void Connections::add(int socket) {
  const std::lock_guard lock(mutex_);
  by_socket_[socket] = {};
}

void Connections::remove(int socket) {
  {
    const std::lock_guard lock(mutex_);
    by_socket_.erase(socket);
  }
  wake();
}

void Connections::set(int socket, State state) {
  const std::lock_guard lock(mutex_);
  const auto found = by_socket_.find(socket);
  if (found == by_socket_.end()) return;
  found->second.state = state;
  found->second.since = Clock::now();
}

size_t Connections::size() const {
  const std::lock_guard lock(mutex_);
  return by_socket_.size();
}

/// Ends a connection, and forgets it if its socket is closed already: libmicrohttpd does not tell of
/// connections for which it had no memory.   @return the next one
Connections::Place Connections::end(Place place) {
  if (::shutdown(place->first, SHUT_RDWR) != 0 && errno != ENOTCONN) return by_socket_.erase(place);
  place->second.is_ended = true;
  return std::next(place);
}

void Connections::end_slowest(Time patience) {
  const std::lock_guard lock(mutex_);
  auto slowest = by_socket_.end();
  for (auto place = by_socket_.begin(); place != by_socket_.end(); ++place) {
    const Connection& connection = place->second;
    if (connection.is_ended || connection.state == State::kAnswering) continue;
    if (slowest == by_socket_.end() || connection.since < slowest->second.since) slowest = place;
  }
  if (slowest != by_socket_.end() && Clock::now() - slowest->second.since >= patience) end(slowest);
}

void Connections::end_late(Time max_receiving, Time max_sending) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  for (auto place = by_socket_.begin(); place != by_socket_.end();) {
    const Connection& connection = place->second;
    const Time most = connection.state == State::kReceiving ? max_receiving : max_sending;
    const bool is_late = !connection.is_ended && connection.state != State::kAnswering &&
                         now - connection.since > most;
    place = is_late ? end(place) : std::next(place);
  }
}

void Connections::wake() const {
  ::eventfd_write(event_, 1);
}

void Connections::clear() const {
  eventfd_t ignored = 0;
  ::eventfd_read(event_, &ignored);
}

}  // namespace sftrun::serve
