#include "sftrun/serve/http_server.h"

#include <fmt/format.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/serve/http_status.h"

namespace sftrun::serve {

std::string HttpRequest::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string() : found->second;
}

namespace {

/// Closed by libmicrohttpd once a daemon has it.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

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
int listen_on(const HttpServer::Options& options) {
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
  Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  constexpr int kBacklog = 128;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (socket.get() < 0 || ::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(socket.get(), kBacklog) != 0)
    throw_not_listening(options, errno);
  return socket.release();
}

uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

/// Whether the other end has not closed the connection. What it sends meanwhile stays unread.
bool is_open(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (info == nullptr) return false;
  pollfd waiting{.fd = info->connect_fd, .events = POLLIN | POLLRDHUP, .revents = 0};
  if (::poll(&waiting, 1, 0) <= 0) return true;
  if ((waiting.revents & (POLLERR | POLLHUP | POLLRDHUP | POLLNVAL)) != 0) return false;
  char byte = 0;
  return ::recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

/// @param seconds without a byte sent or received, after which the connection is closed; 0: never.
/// Counts from now on.
void set_timeout(MHD_Connection* connection, unsigned seconds) {
  MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, seconds);
}

/// The body of a streamed response.
struct Stream {
  std::function<bool(std::string&)> next;
  MHD_Connection* connection = nullptr;
  unsigned idle_seconds = 0;
  std::string pending = {};
  bool is_last = false;

  /// Waits for the next part.   @return bytes written, or one of libmicrohttpd's marks
  ssize_t read(char* to, size_t most) {
    set_timeout(connection, 0);
    while (pending.empty() && !is_last) {
      if (!is_open(connection)) return MHD_CONTENT_READER_END_WITH_ERROR;
      is_last = !next(pending);
    }
    set_timeout(connection, idle_seconds);
    if (pending.empty()) return MHD_CONTENT_READER_END_OF_STREAM;
    const size_t count = std::min(most, pending.size());
    pending.copy(to, count);
    pending.erase(0, count);
    return static_cast<ssize_t>(count);
  }
};

ssize_t read_stream(void* stream, uint64_t /*position*/, char* to, size_t most) {
  try {
    return static_cast<Stream*>(stream)->read(to, most);
  } catch (const std::exception& error) {
    log::error("a streamed response failed: {}", error.what());
    return MHD_CONTENT_READER_END_WITH_ERROR;
  }
}
void free_stream(void* stream) {
  delete static_cast<Stream*>(stream);  // libmicrohttpd owns it
}

/// The headers of a request, in which some may be only once.
struct Headers {
  std::map<std::string, std::string> by_name;
  bool are_ambiguous = false;
};

MHD_Result add_header(void* to, MHD_ValueKind /*kind*/, const char* name, const char* value) {
  auto& headers = *static_cast<Headers*>(to);
  const auto [place, is_new] =
      headers.by_name.emplace(ascii_lower(name), value == nullptr ? "" : value);
  headers.are_ambiguous |= !is_new && (place->first == "content-length" || place->first == "host" ||
                                       place->first == "authorization");
  return MHD_YES;
}

/// A proxy may read a request with two lengths in another way (request smuggling).
bool are_ambiguous(const Headers& headers) {
  return headers.are_ambiguous || (headers.by_name.contains("content-length") &&
                                   headers.by_name.contains("transfer-encoding"));
}

/// A request whose body arrives in parts. It lives until its response is sent.
struct Incoming {
  explicit Incoming(std::atomic<int>& num_open_) : num_open(num_open_) { ++num_open; }
  ~Incoming() { --num_open; }
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  std::atomic<int>& num_open;  ///< requests of the server
  HttpRequest request;
  size_t num_bytes = 0;  ///< of the body, also those that were not kept
};

void free_incoming(void* /*server*/, MHD_Connection* /*connection*/, void** incoming,
                   MHD_RequestTerminationCode /*how*/) {
  delete static_cast<Incoming*>(*incoming);
  *incoming = nullptr;
}

void log_message(void* /*server*/, const char* format, va_list arguments) {
  std::array<char, 512> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  log::debug("http: {}", trim(text.data()));
}

HttpResponse ambiguous() {
  return {.status = kBadRequest,
          .headers = {{"Content-Type", "text/plain"}, {"Connection", "close"}},
          .body = "the request has a header twice, or two lengths\n"};
}

HttpResponse too_large(size_t most) {
  return {.status = kTooLarge,
          .headers = {{"Content-Type", "application/json"}, {"Connection", "close"}},
          .body = fmt::format(
              "{{\"error\": {{\"message\": \"the body has more than {} bytes\", \"type\": "
              "\"invalid_request_error\", \"param\": null, \"code\": null}}}}\n",
              most)};
}

}  // namespace

struct HttpServer::Impl {
  Options options;
  Handler handler;
  uint16_t port = 0;
  MHD_Daemon* daemon = nullptr;
  mutable std::atomic<int> num_open{0};

  Impl(const Options& options_, Handler handler_)
      : options(options_), handler(std::move(handler_)) {}

  MHD_Result respond(MHD_Connection* connection, HttpResponse response) const {
    MHD_Response* made = nullptr;
    if (response.stream) {
      constexpr size_t kBlock = 16 << 10;
      auto stream = std::make_unique<Stream>(
          Stream{std::move(response.stream), connection, options.idle_seconds});
      made = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kBlock, read_stream, stream.get(),
                                               free_stream);
      if (made != nullptr) static_cast<void>(stream.release());
    } else {
      made = MHD_create_response_from_buffer(response.body.size(), response.body.data(),
                                             MHD_RESPMEM_MUST_COPY);
    }
    if (made == nullptr) return MHD_NO;
    for (const auto& [name, value] : response.headers)
      MHD_add_response_header(made, name.c_str(), value.c_str());
    set_timeout(connection, options.idle_seconds);
    const MHD_Result queued =
        MHD_queue_response(connection, static_cast<unsigned>(response.status), made);
    MHD_destroy_response(made);
    return queued;
  }

  /// The size that the client announces; 0: unknown.
  static size_t announced(const HttpRequest& request) {
    return std::strtoull(request.header("content-length").c_str(), nullptr, 10);
  }

  /// Called when the headers are complete, for each part of the body, and at its end.
  MHD_Result receive(MHD_Connection* connection, const char* path, const char* method,
                     const char* part, size_t* part_size, void** state) const {
    auto* incoming = static_cast<Incoming*>(*state);
    if (incoming == nullptr) {
      incoming = new Incoming(num_open);  // freed by free_incoming
      *state = incoming;
      incoming->request.method = method;
      incoming->request.path = path;
      Headers headers;
      MHD_get_connection_values(connection, MHD_HEADER_KIND, add_header, &headers);
      if (are_ambiguous(headers)) return respond(connection, ambiguous());
      incoming->request.headers = std::move(headers.by_name);
      if (announced(incoming->request) > options.max_body_bytes)
        return respond(connection, too_large(options.max_body_bytes));
      return MHD_YES;
    }
    if (*part_size > 0) {
      incoming->num_bytes += *part_size;
      // A response is possible only at the end of the body. Some more is read for that, not all.
      if (incoming->num_bytes > 4 * options.max_body_bytes) return MHD_NO;
      if (incoming->num_bytes <= options.max_body_bytes)
        incoming->request.body.append(part, *part_size);
      *part_size = 0;
      return MHD_YES;
    }
    if (incoming->num_bytes > options.max_body_bytes)
      return respond(connection, too_large(options.max_body_bytes));
    incoming->request.is_connected = [connection] { return is_open(connection); };
    set_timeout(connection, 0);
    return respond(connection, handler(incoming->request));
  }

  static MHD_Result on_request(void* server, MHD_Connection* connection, const char* path,
                               const char* method, const char* /*version*/, const char* part,
                               size_t* part_size, void** state) {
    try {
      return static_cast<const Impl*>(server)->receive(connection, path, method, part, part_size,
                                                       state);
    } catch (const std::exception& error) {
      log::error("a request failed: {}", error.what());
      return MHD_NO;  // closes the connection
    }
  }
};

HttpServer::HttpServer(const Options& options, Handler handler)
    : impl_(std::make_unique<Impl>(options, std::move(handler))) {
  Socket socket(listen_on(options));
  impl_->port = port_of(socket.get());
  impl_->daemon = MHD_start_daemon(
      MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ITC |
          MHD_USE_ERROR_LOG,
      /*port=*/0, /*accept=*/nullptr, nullptr, &Impl::on_request, impl_.get(),
      MHD_OPTION_EXTERNAL_LOGGER, &log_message, nullptr,  // first, so that it has all messages
      MHD_OPTION_LISTEN_SOCKET, socket.get(), MHD_OPTION_CONNECTION_LIMIT, options.max_connections,
      MHD_OPTION_CONNECTION_TIMEOUT, options.idle_seconds, MHD_OPTION_STRICT_FOR_CLIENT, 1,
      MHD_OPTION_NOTIFY_COMPLETED, &free_incoming, nullptr, MHD_OPTION_END);
  if (impl_->daemon == nullptr) {
    throw DeviceError("the HTTP server cannot start", {},
                      "check the limits on threads and open files (ulimit -u, ulimit -n)");
  }
  socket.release();
}

/// Responses in progress are sent before; their handlers are expected to end soon.
HttpServer::~HttpServer() {
  constexpr auto kLook = std::chrono::milliseconds(10);
  constexpr int kLooks = 200;
  const int socket = MHD_quiesce_daemon(impl_->daemon);  // no new connections
  for (int i = 0; i < kLooks && impl_->num_open > 0; ++i) std::this_thread::sleep_for(kLook);
  if (socket >= 0) ::close(socket);
  MHD_stop_daemon(impl_->daemon);
}

uint16_t HttpServer::port() const {
  return impl_->port;
}

}  // namespace sftrun::serve
