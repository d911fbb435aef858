#include "rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <stop_token>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/stall.h"
#include "sftrun/core/units.h"
#include "sftrun/core/warnings.h"

namespace sftrun::parallel {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kGaveUp = "gave_up";  // store key: why the ranks stopped waiting
constexpr double kDecisionS = 10;           // extra time in which rank 0 decides to stop waiting

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string place_of(const Identity& identity) {
  return fmt::format("{}:{}", identity.master_addr, identity.master_port);
}

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  int get() const { return fd_; }
  /// Gives up ownership of the descriptor.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// The addresses that a host name resolves to on this machine.
class Addresses {
 public:
  Addresses(const std::string& host, int port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    error_ = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first_);
  }
  ~Addresses() {
    if (first_ != nullptr) ::freeaddrinfo(first_);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  const addrinfo* first() const { return first_; }
  std::string problem() const { return error_ == 0 ? "" : ::gai_strerror(error_); }

 private:
  addrinfo* first_ = nullptr;
  int error_ = 0;
};

bool is_loopback(const addrinfo& address) {
  if (address.ai_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address.ai_addr);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  return address.ai_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr);
}

/// Whether the address is written in digits, as 127.0.0.1 and ::1 are, and no name.
bool is_numeric(const std::string& address) {
  in6_addr parsed{};
  return ::inet_pton(AF_INET, address.c_str(), &parsed) == 1 ||
         ::inet_pton(AF_INET6, address.c_str(), &parsed) == 1;
}

/// Whether this machine's loopback answers to the address, but the ranks of other machines are to
/// reach it: a machine's own name is often 127.0.1.1 in its /etc/hosts, and Kubernetes' jobs give
/// their master `localhost`. 127.0.0.1 in digits is meant: all launchers are on this machine.
bool is_loopback_for_others(const addrinfo& at, const Identity& identity) {
  return is_loopback(at) && !identity.is_one_machine && !is_numeric(identity.master_addr);
}

/// Bound to the master's address; none where this machine does not have it, or other machines would
/// not reach it.
/// @param port 0: any, to ask whether this machine has the address
Socket bind_to_master(const Identity& identity, int port) {
  const Addresses addresses(identity.master_addr, port);
  for (const addrinfo* at = addresses.first(); at != nullptr; at = at->ai_next) {
    if (is_loopback_for_others(*at, identity)) continue;
    Socket socket(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
    if (socket.get() < 0) continue;
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0) return socket;
    if (errno == EADDRINUSE) {
      throw CommError(fmt::format("port {} is already in use", port), place_of(identity),
                      "give another with --master-port (or MASTER_PORT)");
    }
  }
  return Socket();
}

/// Where rank 0 finds the store that it hosts: behind the loopback, if it listens everywhere.
std::string store_host(const Identity& identity) {
  const bool listens_everywhere =
      hosts_store(identity.rank) && bind_to_master(identity, 0).get() < 0;
  return listens_everywhere ? "127.0.0.1" : identity.master_addr;
}

enum class Answer { kListens, kRefuses, kNone };

Answer ask(const addrinfo& address, std::string& problem) {
  const Socket socket(::socket(
      address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol));
  if (socket.get() < 0) return Answer::kNone;
  int error = ::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd waiting{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    error = ETIMEDOUT;
    socklen_t size = sizeof error;
    if (::poll(&waiting, 1, 1000) == 1)
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0) return Answer::kListens;
  problem = std::strerror(error);
  return error == ECONNREFUSED ? Answer::kRefuses : Answer::kNone;
}

/// Tries every address that the master's name resolves to and returns the best answer.
Answer ask_master(const Identity& identity, std::string& problem) {
  const Addresses addresses(identity.master_addr, identity.master_port);
  problem = addresses.problem();
  Answer best = Answer::kNone;
  for (const addrinfo* at = addresses.first(); at != nullptr; at = at->ai_next)
    best = std::min(best, ask(*at, problem));
  return best;
}

/// `due` is true after `first_s`, and again each time the waiting time has doubled.
class Reports {
 public:
  explicit Reports(double first_s) : next_s_(first_s) {}
  bool due(double waited_s) {
    if (waited_s < next_s_) return false;
    next_s_ = 2 * waited_s;
    return true;
  }

 private:
  double next_s_;
};

void wait_for_host(const Identity& identity, const ConnectOptions& options) {
  const Clock::time_point start = Clock::now();
  double last_answer_s = 0;
  Reports reports(options.unreachable_s);
  for (std::string problem;;) {
    const Answer answer = ask_master(identity, problem);
    if (answer == Answer::kListens) return;
    const double waited_s = seconds_since(start);
    if (answer == Answer::kRefuses) last_answer_s = waited_s;
    if (waited_s - last_answer_s > options.unreachable_s) {
      throw CommError(fmt::format("rank {} cannot reach rank 0: {}", identity.rank, problem),
                      place_of(identity),
                      "check --master-addr (or MASTER_ADDR), the network and the firewall");
    }
    if (waited_s > options.timeout_s) {
      throw CommError(fmt::format("rank {} has waited {} for rank 0: nothing listens there",
                                  identity.rank, format_duration(waited_s)),
                      place_of(identity),
                      "check that rank 0 was started, and --master-addr and --master-port");
    }
    if (reports.due(waited_s)) {
      log::warn_of_rank(identity.rank, "waits for rank 0: nothing listens at {} yet ({})",
                        place_of(identity), format_duration(waited_s));
    }
    if (options.stop_requested && options.stop_requested()) throw StoppedWaiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(answer == Answer::kNone ? 500 : 50));
  }
}

/// Of rank 0, whose own name it is: a cluster may know it a moment after the start.
void wait_for_name(const Identity& identity, const ConnectOptions& options) {
  const Clock::time_point start = Clock::now();
  for (;;) {
    const std::string problem = Addresses(identity.master_addr, identity.master_port).problem();
    if (problem.empty()) return;
    if (seconds_since(start) > options.unreachable_s) {
      throw CommError("rank 0 cannot resolve its own address: " + problem, place_of(identity),
                      "check --master-addr (or MASTER_ADDR)");
    }
    if (options.stop_requested && options.stop_requested()) throw StoppedWaiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

c10::intrusive_ptr<c10d::Store> with_prefix(c10::intrusive_ptr<c10d::Store> store) {
  // torchrun's store outlives an attempt. Rank 0's own begins with it, and nodes that restart
  // together may have restarted different numbers of times: one may have been replaced.
  const std::string attempt = hosts_store(0) ? "" : environment("TORCHELASTIC_RESTART_COUNT");
  return c10::make_intrusive<c10d::PrefixStore>("sftrun/" + (attempt.empty() ? "0" : attempt),
                                                std::move(store));
}

/// Whether a socket leads to this port of some machine.
bool leads_to_port(int fd, int port) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return false;
  if (peer.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(&peer)->sin_port) == port;
  return peer.ss_family == AF_INET6 &&
         ntohs(reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_port) == port;
}

/// The connections of this process to a store, but those that have been limited: TCPStore keeps its
/// sockets to itself.
std::vector<int> unlimited_connections(int port) {
  std::vector<int> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    timeval limit{};
    socklen_t size = sizeof limit;
    if (leads_to_port(fd, port) && ::getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &size) == 0 &&
        limit.tv_sec == 0 && limit.tv_usec == 0)
      found.push_back(fd);
  }
  return found;
}

/// TCPStore waits without end for an answer, also where the host's process was stopped or its
/// machine is gone.
void limit_answers(int port, double seconds) {
  const auto whole = static_cast<time_t>(seconds);
  const auto micros = static_cast<suseconds_t>(1e6 * (seconds - static_cast<double>(whole)));
  const timeval limit{.tv_sec = whole, .tv_usec = micros};
  for (const int fd : unlimited_connections(port))
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

/// Closes the connections that have had no first answer in time: another program may listen there.
class FirstAnswer {
 public:
  FirstAnswer(int port, double seconds)
      : thread_([port, seconds](const std::stop_token& stop) {
          std::mutex mutex;
          std::condition_variable_any stopped;
          std::unique_lock lock(mutex);
          const auto ends_within = [&](double wait_s) {
            return stopped.wait_for(lock, stop, std::chrono::duration<double>(wait_s),
                                    [&] { return stop.stop_requested(); });
          };
          if (ends_within(seconds)) return;
          do {
            for (const int fd : unlimited_connections(port)) ::shutdown(fd, SHUT_RDWR);
          } while (!ends_within(0.1));
        }) {}

 private:
  std::jthread thread_;
};

c10::intrusive_ptr<c10d::Store> connected(const Identity& identity,
                                          const c10d::TCPStoreOptions& options, double answer_s) {
  c10::intrusive_ptr<c10d::TCPStore> store;
  try {
    const FirstAnswer guard(identity.master_port,
                            std::chrono::duration<double>(options.timeout).count());
    store = c10::make_intrusive<c10d::TCPStore>(store_host(identity), options);
  } catch (const std::exception&) {
    if (options.isServer) throw;
    throw CommError(
        fmt::format("rank {} got no answer from the program that listens there", identity.rank),
        place_of(identity),
        "check --master-addr and --master-port: another program may use this port");
  }
  limit_answers(identity.master_port, answer_s);
  return with_prefix(std::move(store));
}

std::chrono::milliseconds as_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(1e3 * seconds));
}

c10d::TCPStoreOptions store_options(const Identity& identity, double first_answer_s) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(identity.master_port);
  options.numWorkers = static_cast<size_t>(identity.world_size);
  options.waitWorkers = false;
  options.timeout = as_milliseconds(first_answer_s);  // the host listens by now
  return options;
}

std::string arrival(int rank) {
  return fmt::format("came/{}", rank);
}

std::string text_of(c10d::Store& store, const char* key) {
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

std::vector<int> missing_ranks(c10d::Store& store, int world_size) {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank)
    if (!store.check({arrival(rank)})) missing.push_back(rank);
  return missing;
}

}  // namespace

bool hosts_store(int rank) {
  return rank == 0 && environment("TORCHELASTIC_USE_AGENT_STORE") != "True";
}

c10::intrusive_ptr<c10d::Store> open_store(const Identity& identity,
                                           const ConnectOptions& options) {
  c10d::TCPStoreOptions tcp = store_options(identity, options.first_answer_s);
  tcp.isServer = hosts_store(identity.rank);
  if (!tcp.isServer) {
    wait_for_host(identity, options);
  } else if (Socket socket = bind_to_master(identity, identity.master_port); socket.get() >= 0) {
    tcp.masterListenFd = socket.release();
  } else {
    wait_for_name(identity, options);
    const Addresses addresses(identity.master_addr, identity.master_port);
    const bool names_loopback = addresses.first() != nullptr && is_loopback(*addresses.first());
    log::warn(
        "rank 0 waits for the other ranks on all interfaces, because {} {}: any host that reaches "
        "port {} can join",
        identity.master_addr,
        names_loopback ? "is the loopback address, which other machines do not reach"
                       : "is not a network address of this machine",
        identity.master_port);
  }
  return connected(identity, tcp, options.timeout_s);
}

std::string own_address(const Identity& identity) {
  const Addresses addresses(identity.master_addr, identity.master_port);
  for (const addrinfo* at = addresses.first(); at != nullptr; at = at->ai_next) {
    if (is_loopback_for_others(*at, identity)) continue;
    // Connecting a datagram socket sends nothing, and chooses the interface.
    const Socket socket(::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    auto* generic = reinterpret_cast<sockaddr*>(&own);
    std::array<char, NI_MAXHOST> digits{};
    if (socket.get() >= 0 && ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), generic, &size) == 0 &&
        ::getnameinfo(generic, size, digits.data(), digits.size(), nullptr, 0, NI_NUMERICHOST) == 0)
      return digits.data();
  }
  return {};
}

c10::intrusive_ptr<c10d::Store> another_connection(const Identity& identity, double answer_s) {
  auto store = connected(identity, store_options(identity, answer_s), answer_s);
  store->setTimeout(as_milliseconds(answer_s));
  return store;
}

void wait_for_all_ranks(c10d::Store& store, const Identity& identity,
                        const ConnectOptions& options) {
  store.set(arrival(identity.rank), std::vector<uint8_t>{1});
  std::vector<std::string> all;
  for (int rank = 0; rank < identity.world_size; ++rank) all.push_back(arrival(rank));
  const auto give_up = [&](const std::string& why) {
    throw CommError(why, place_of(identity),
                    "see the logs of the machines that should run them; parallel.timeout sets how "
                    "long the others wait");
  };
  // Rank 0 decides first. The others read its decision from the store, which ends with rank 0.
  const double timeout_s = options.timeout_s + (identity.rank == 0 ? 0 : kDecisionS);
  const Clock::time_point start = Clock::now();
  Reports reports(options.report_s);
  while (!store.check(all)) {
    const double waited_s = seconds_since(start);
    if (store.check({kGaveUp})) give_up(text_of(store, kGaveUp));
    if (waited_s > timeout_s) {
      const std::string why = fmt::format("{} of {} did not join within {}",
                                          name_ranks(missing_ranks(store, identity.world_size)),
                                          identity.world_size, format_duration(options.timeout_s));
      store.set(kGaveUp, std::vector<uint8_t>(why.begin(), why.end()));
      std::this_thread::sleep_for(std::chrono::seconds(1));
      give_up(why);
    }
    if (identity.rank == 0 && reports.due(waited_s)) {
      log::warn("still waiting for {} of {} after {}",
                name_ranks(missing_ranks(store, identity.world_size)), identity.world_size,
                format_duration(waited_s));
    }
    if (options.stop_requested && options.stop_requested()) throw StoppedWaiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(waited_s < 1 ? 2 : 50));
  }
}

namespace {

constexpr const char* kAllCame = "all_came";  // store key: the rendezvous was complete
constexpr double kHostReturnsS = 60;          // from the end of a store until its host's restart

/// Whether sftrun's launchers may start the ranks again.
bool may_restart() {
  const std::string most = environment("TORCHELASTIC_MAX_RESTARTS");
  return hosts_store(0) && !most.empty() && most != "0";
}

/// Whether this store's ranks had all met, and this one was among them: it was started again.
bool is_of_earlier_attempt(c10d::Store& store, int rank) {
  return store.add(fmt::format("joined/{}", rank), 1) > 1 && store.check({kAllCame});
}

/// @return false if the store is of an earlier attempt, or ended
bool meet_in(c10d::Store& store, const Identity& identity, const ConnectOptions& options) {
  try {
    if (is_of_earlier_attempt(store, identity.rank)) return false;
    wait_for_all_ranks(store, identity, options);
    return true;
  } catch (const Error&) {
    throw;
  } catch (const StoppedWaiting&) {
    throw;
  } catch (const std::exception&) {  // its host has ended
    return false;
  }
}

/// null: the host ended while this rank connected to it
c10::intrusive_ptr<c10d::Store> open_unless_it_ends(const Identity& identity,
                                                    const ConnectOptions& options) {
  constexpr double kAtOnceS = 5;  // an address that does not answer takes longer
  const Clock::time_point start = Clock::now();
  try {
    return open_store(identity, options);
  } catch (const CommError&) {
    if (seconds_since(start) > kAtOnceS) throw;
    return nullptr;
  }
}

c10::intrusive_ptr<c10d::Store> meet_restarted_ranks(const Identity& identity,
                                                     const ConnectOptions& options) {
  const Clock::time_point start = Clock::now();
  ConnectOptions now = options;
  for (;;) {
    const auto store = open_unless_it_ends(identity, now);
    if (store) {
      store->setTimeout(as_milliseconds(options.timeout_s));
      if (meet_in(*store, identity, options)) return store;
    }
    if (seconds_since(start) > options.timeout_s) {
      throw CommError(fmt::format("rank {} found only ranks of an earlier start", identity.rank),
                      place_of(identity), "see the log of rank 0");
    }
    if (options.stop_requested && options.stop_requested()) throw StoppedWaiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    now.timeout_s = std::min(options.timeout_s, kHostReturnsS);
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> meet_all_ranks(const Identity& identity,
                                               const ConnectOptions& options) {
  if (!hosts_store(identity.rank) && may_restart()) return meet_restarted_ranks(identity, options);
  auto store = open_store(identity, options);
  store->setTimeout(as_milliseconds(options.timeout_s));
  wait_for_all_ranks(*store, identity, options);
  if (hosts_store(identity.rank)) store->set(kAllCame, std::vector<uint8_t>{1});
  return store;
}

}  // namespace sftrun::parallel
