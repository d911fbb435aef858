#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>

namespace sftrun::serve {

/// The open connections of a server, by their sockets. Thread-safe.
///
/// A connection is ended by shutting its socket down; the thread that serves it then closes it and
/// calls `remove`.
class Connections {
 public:
  using Time = std::chrono::milliseconds;
  enum class State {
    kReceiving,  ///< a request, or nothing between two of them
    kAnswering,
    kSending,  ///< of an answer what is there
  };

  Connections();
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  void add(int socket);  ///< receiving
  void remove(int socket);
  void set(int socket, State state);  ///< its time begins anew
  size_t size() const;

  /// Ends the one that has been receiving or sending for longest, if that is at least `patience`.
  void end_slowest(Time patience);
  /// Ends those that have been receiving or sending for longer.
  void end_late(Time max_receiving, Time max_sending);

  /// A descriptor that is readable after `remove` or `wake`, until `clear`.
  int changed() const { return event_; }
  void wake() const;
  void clear() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    State state = State::kReceiving;
    Clock::time_point since = Clock::now();
    bool is_ended = false;
  };
  using Place = std::map<int, Connection>::iterator;
  Place end(Place place);

  mutable std::mutex mutex_;
  std::map<int, Connection> by_socket_;
  int event_;
};

}  // namespace sftrun::serve
