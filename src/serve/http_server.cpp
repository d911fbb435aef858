#include "sftrun/serve/http_server.h"

#include <fmt/format.h>
#include <malloc.h>
#include <microhttpd.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <thread>
#include <utility>

#include "connections.h"
#include "listener.h"
#include "request_head.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/serve/http_status.h"

namespace sftrun::serve {

std::string HttpRequest::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string() : found->second;
}

void HttpRequest::drop_body() {
  std::string().swap(body);  // an assignment would keep the memory
  body_memory.reset();
}

namespace {

using State = Connections::State;

/// Of a request's line and headers.
constexpr size_t kMaxHeadBytes = size_t{32} << 10;
/// What libmicrohttpd may hold of a connection. It refuses heads that do not fit with a page of HTML; those
/// that fit are refused here, as all other requests are.
constexpr size_t kConnectionBytes = 8 * kMaxHeadBytes;

/// What is freed goes back to the system: the allocator keeps it otherwise, for each thread.
void give_back_memory(size_t freed_bytes) {
  constexpr size_t kMuch = size_t{1} << 20;
  if (freed_bytes >= kMuch) ::malloc_trim(0);
}

/// What one body takes of the memory of all bodies.
class BodyShare {
 public:
  explicit BodyShare(std::atomic<size_t>& used) : used_(used) {}
  ~BodyShare() { used_ -= bytes_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  /// @return false: all bodies would take more than `most`
  bool grow(size_t bytes, size_t most) {
    if (used_.fetch_add(bytes) + bytes > most) {
      used_ -= bytes;
      return false;
    }
    bytes_ += bytes;
    return true;
  }

 private:
  std::atomic<size_t>& used_;
  size_t bytes_ = 0;
};

int socket_of(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  return info == nullptr ? -1 : info->connect_fd;
}

/// Whether the other end has not closed the connection. What it sends meanwhile stays unread.
bool is_open(MHD_Connection* connection) {
  pollfd waiting{.fd = socket_of(connection), .events = POLLIN | POLLRDHUP, .revents = 0};
  if (waiting.fd < 0) return false;
  if (::poll(&waiting, 1, 0) <= 0) return true;
  if ((waiting.revents & (POLLERR | POLLHUP | POLLRDHUP | POLLNVAL)) != 0) return false;
  char byte = 0;
  return ::recv(waiting.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
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
  Connections* connections = nullptr;
  unsigned idle_seconds = 0;
  std::string pending = {};
  bool is_last = false;

  /// Waits for the next part.   @return bytes written, or one of libmicrohttpd's marks
  ssize_t read(char* to, size_t most) {
    wait();
    if (pending.empty())
      return is_last ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
    const size_t count = std::min(most, pending.size());
    pending.copy(to, count);
    pending.erase(0, count);
    return static_cast<ssize_t>(count);
  }

  /// Until there is a part, or none will come.
  void wait() {
    const int socket = socket_of(connection);
    set_timeout(connection, 0);
    connections->set(socket, State::kAnswering);
    while (pending.empty() && !is_last && is_open(connection)) is_last = !next(pending);
    connections->set(socket, State::kSending);
    set_timeout(connection, idle_seconds);
  }
};

ssize_t read_stream(void* stream, uint64_t /*position*/, char* to, size_t most) {
  try {
    return static_cast<Stream*>(stream)->read(to, most);
  } catch (const std::exception& error) {
    log_failure("a streamed response", error);
    return MHD_CONTENT_READER_END_WITH_ERROR;
  }
}
void free_stream(void* stream) {
  delete static_cast<Stream*>(stream);  // libmicrohttpd owns it
}
void free_text(void* text) {
  std::unique_ptr<std::string> owned(static_cast<std::string*>(text));
  const size_t size = owned->size();
  owned.reset();
  give_back_memory(size);
}

/// The headers of a request, in which some may be only once.
struct Headers {
  std::map<std::string, std::string> by_name;
  bool are_ambiguous = false;
  bool are_incomplete = false;  ///< there was no memory
  size_t num_bytes = 0;         ///< as they were sent
};

/// Called by C code, through which nothing may be thrown.
MHD_Result add_header(void* to, MHD_ValueKind /*kind*/, const char* name,
                      const char* value) noexcept {
  auto& headers = *static_cast<Headers*>(to);
  constexpr size_t kBetween = 4;  // ": " and the end of the line
  headers.num_bytes += std::strlen(name) + (value == nullptr ? 0 : std::strlen(value)) + kBetween;
  try {
    const auto [place, is_new] =
        headers.by_name.emplace(ascii_lower(name), value == nullptr ? "" : value);
    headers.are_ambiguous |=
        !is_new && (place->first == "content-length" || place->first == "content-type" ||
                    place->first == "content-encoding" || place->first == "host" ||
                    place->first == "authorization");
    return MHD_YES;
  } catch (const std::bad_alloc&) {
    headers.are_incomplete = true;
    return MHD_NO;
  }
}

/// libmicrohttpd would decode an escaped NUL, which ends the path for it: `parse_target` decodes.
size_t keep_escapes(void* /*server*/, MHD_Connection* /*connection*/, char* text) noexcept {
  return std::strlen(text);
}

/// A proxy may read a request with two lengths in another way (request smuggling).
bool are_ambiguous(const Headers& headers) {
  return headers.are_ambiguous || (headers.by_name.contains("content-length") &&
                                   headers.by_name.contains("transfer-encoding"));
}

/// A request whose body arrives in parts. It lives until its response is sent.
struct Incoming {
  Incoming(std::atomic<int>& num_open_, Connections& connections_, int socket_)
      : num_open(num_open_), connections(connections_), socket(socket_) {
    ++num_open;
  }
  ~Incoming() {
    --num_open;
    connections.set(socket, State::kReceiving);
  }
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;

  std::atomic<int>& num_open;  ///< requests of the server
  Connections& connections;
  const int socket;
  HttpRequest request;
  std::shared_ptr<BodyShare> share;
  size_t num_bytes = 0;                 ///< of the body, also those that were not kept
  std::optional<HttpResponse> refusal;  ///< to be sent at the end of the body, which is not kept
};

void free_incoming(void* /*server*/, MHD_Connection* /*connection*/, void** incoming,
                   MHD_RequestTerminationCode /*how*/) {
  const std::unique_ptr<Incoming> owned(static_cast<Incoming*>(std::exchange(*incoming, nullptr)));
  if (owned == nullptr) return;
  owned->request.drop_body();
  give_back_memory(owned->num_bytes);
}

/// Called by C code, through which nothing may be thrown.
void log_message(void* /*server*/, const char* format, va_list arguments) noexcept {
  std::array<char, 512> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  try {
    log::debug("http: {}", trim(text.data()));
  } catch (const std::bad_alloc&) {
  }
}

/// As OpenAI's API has it.
HttpResponse error_response(int status, const std::string& message, const char* type) {
  return {.status = status,
          .headers = {{"Content-Type", "application/json"}, {"Connection", "close"}},
          .body = fmt::format("{{\"error\": {{\"message\": \"{}\", \"type\": \"{}\", \"param\": "
                              "null, \"code\": null}}}}\n",
                              message, type)};
}

HttpResponse bad_request(const std::string& message, int status = kBadRequest) {
  return error_response(status, message, "invalid_request_error");
}

HttpResponse too_large(size_t most) {
  return bad_request(
      fmt::format("the body has more than {} bytes: send less, such as smaller images, or "
                  "start the server with a larger --max-request-size",
                  most),
      kTooLarge);
}

/// @param is_target whether the target alone is too long
HttpResponse too_long_head(bool is_target) {
  return bad_request(
      fmt::format("{} more than {} bytes",
                  is_target ? "the request's target has" : "the headers of the request have",
                  kMaxHeadBytes),
      is_target ? kTargetTooLong : kHeadersTooLarge);
}

HttpResponse unavailable(const std::string& message) {
  HttpResponse response = error_response(kUnavailable, message, "server_error");
  response.headers["Retry-After"] = "1";
  return response;
}

HttpResponse out_of_memory() {
  return unavailable("the server has run out of memory; ask for less");
}

}  // namespace

struct HttpServer::Impl {
  const Options options;
  const Handler handler;
  const Admission admission;
  Connections connections;
  Listener listener;
  std::atomic<size_t> body_bytes{0};
  std::atomic<int> num_open{0};
  MHD_Daemon* daemon = nullptr;
  std::thread acceptor = {};

  Impl(const Options& options_, Handler handler_, Admission admission_)
      : options(options_),
        handler(std::move(handler_)),
        admission(std::move(admission_)),
        listener(options, connections) {}

  // ---- connections

  static void on_connection(void* server, MHD_Connection* connection, void** /*context*/,
                            MHD_ConnectionNotificationCode what) {
    if (what == MHD_CONNECTION_NOTIFY_CLOSED)
      static_cast<Impl*>(server)->connections.remove(socket_of(connection));
  }

  // ---- requests

  MHD_Response* made_of(MHD_Connection* connection, HttpResponse& response) {
    if (response.stream) {
      constexpr size_t kBlock = 16 << 10;
      auto stream = std::make_unique<Stream>();
      stream->next = std::move(response.stream);
      stream->connection = connection;
      stream->connections = &connections;
      stream->idle_seconds = options.idle_seconds;
      MHD_Response* made = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kBlock, read_stream,
                                                             stream.get(), free_stream);
      if (made != nullptr) static_cast<void>(stream.release());
      return made;
    }
    auto text = std::make_unique<std::string>(std::move(response.body));
    MHD_Response* made = MHD_create_response_from_buffer_with_free_callback_cls(
        text->size(), text->data(), free_text, text.get());
    if (made != nullptr) static_cast<void>(text.release());
    return made;
  }

  MHD_Result respond(MHD_Connection* connection, HttpResponse response) {
    MHD_Response* made = made_of(connection, response);
    if (made == nullptr) return MHD_NO;
    for (const auto& [name, value] : response.headers)
      MHD_add_response_header(made, name.c_str(), value.c_str());
    set_timeout(connection, options.idle_seconds);
    connections.set(socket_of(connection), State::kSending);
    const MHD_Result queued =
        MHD_queue_response(connection, static_cast<unsigned>(response.status), made);
    MHD_destroy_response(made);
    return queued;
  }

  /// The size that the client announces; 0: unknown.
  static size_t announced(const HttpRequest& request) {
    return std::strtoull(request.header("content-length").c_str(), nullptr, 10);
  }

  /// What the request is for.   @return why it is refused
  static std::optional<HttpResponse> read_head(HttpRequest& request, const char* target,
                                               Headers headers) {
    if (are_ambiguous(headers))
      return bad_request("the request has a header twice, or two lengths");
    std::optional<RequestTarget> asked = parse_target(target);
    if (!asked)
      return bad_request(
          "the request's target must be a path without control characters, or http://HOST:PORT "
          "and such a path");
    request.headers = std::move(headers.by_name);
    request.path = std::move(asked->path);
    if (!is_host(request.header("host")))
      return bad_request("the header Host must be HOST or HOST:PORT");
    const std::string coding = ascii_lower(request.header("transfer-encoding"));
    if (!coding.empty() &&
        coding != "chunked")  // libmicrohttpd would wait for the connection's end
      return bad_request("the only Transfer-Encoding that the server reads is chunked",
                         kNotImplemented);
    if (asked->host) request.headers["host"] = *asked->host;  // RFC 9112, section 3.2.2
    return std::nullopt;
  }

  MHD_Result begin(MHD_Connection* connection, const char* target, const char* method,
                   Incoming& incoming) {
    connections.set(incoming.socket, State::kReceiving);
    incoming.request.method = method;
    Headers headers;
    MHD_get_connection_values(connection, MHD_HEADER_KIND, add_header, &headers);
    if (headers.are_incomplete) return MHD_NO;
    const size_t line = std::strlen(target) + std::strlen(method);
    if (line > kMaxHeadBytes || line + headers.num_bytes > kMaxHeadBytes)
      return respond(connection, too_long_head(line > kMaxHeadBytes));
    if (auto refusal = read_head(incoming.request, target, std::move(headers)))
      return respond(connection, *std::move(refusal));
    if (announced(incoming.request) > options.max_body_bytes)
      return respond(connection, too_large(options.max_body_bytes));
    if (admission) incoming.refusal = admission(incoming.request);
    const bool waits_for_leave = !incoming.request.header("expect").empty();  // 100-continue
    if (incoming.refusal && waits_for_leave) return respond(connection, *incoming.refusal);
    incoming.share = std::make_shared<BodyShare>(body_bytes);
    return MHD_YES;
  }

  /// The body is not kept any more.
  static void refuse(Incoming& incoming, HttpResponse refusal) {
    incoming.request.drop_body();
    incoming.share.reset();
    incoming.refusal = std::move(refusal);
  }

  void keep(Incoming& incoming, std::string_view part) {
    try {
      add(incoming, part);
    } catch (const std::bad_alloc&) {
      incoming.request.drop_body();  // before the refusal takes memory
      refuse(incoming, out_of_memory());
    }
  }

  /// Adds a part to the body, unless the request is refused.
  void add(Incoming& incoming, std::string_view part) {
    std::string& body = incoming.request.body;
    if (incoming.refusal || incoming.num_bytes > options.max_body_bytes) return;
    const size_t needed = body.size() + part.size();
    if (needed > body.capacity()) {
      const size_t length = announced(incoming.request);
      const size_t room = std::min(std::max(needed, 2 * body.capacity()),
                                   length > 0 ? length : options.max_body_bytes);
      const size_t most = room <= kSmallBody
                              ? options.max_bodies_bytes
                              : options.max_bodies_bytes - options.max_bodies_bytes / 4;
      if (!incoming.share->grow(room - body.capacity(), most)) {
        refuse(incoming, unavailable("the server is reading too many long requests: retry later"));
        return;
      }
      body.reserve(room);
    }
    body.append(part);
  }

  HttpResponse handled(HttpRequest& request) {
    try {
      return handler(request);
    } catch (const std::bad_alloc&) {
      request.drop_body();
      return out_of_memory();
    }
  }

  MHD_Result answer(MHD_Connection* connection, Incoming& incoming) {
    if (incoming.num_bytes > options.max_body_bytes)
      return respond(connection, too_large(options.max_body_bytes));
    if (incoming.refusal) return respond(connection, *std::move(incoming.refusal));
    incoming.request.body_memory = std::move(incoming.share);
    incoming.request.is_connected = [connection] { return is_open(connection); };
    set_timeout(connection, 0);
    connections.set(incoming.socket, State::kAnswering);
    return respond(connection, handled(incoming.request));
  }

  /// Called when the headers are complete, for each part of the body, and at its end.
  MHD_Result receive(MHD_Connection* connection, const char* target, const char* method,
                     const char* part, size_t* part_size, void** state) {
    auto* incoming = static_cast<Incoming*>(*state);
    if (incoming == nullptr) {
      incoming = new Incoming(num_open, connections, socket_of(connection));  // see free_incoming
      *state = incoming;
      return begin(connection, target, method, *incoming);
    }
    if (*part_size == 0) return answer(connection, *incoming);
    incoming->num_bytes += *part_size;
    // A response is possible only at the end of the body. Some more is read for that, not all.
    if (incoming->num_bytes > 4 * options.max_body_bytes) return MHD_NO;
    keep(*incoming, {part, *part_size});
    *part_size = 0;
    return MHD_YES;
  }

  static MHD_Result on_request(void* server, MHD_Connection* connection, const char* target,
                               const char* method, const char* /*version*/, const char* part,
                               size_t* part_size, void** state) {
    try {
      return static_cast<Impl*>(server)->receive(connection, target, method, part, part_size,
                                                 state);
    } catch (const std::exception& error) {
      log_failure("a request", error);
      return MHD_NO;  // closes the connection
    }
  }
};

HttpServer::HttpServer(const Options& options, Handler handler, Admission admission)
    : impl_(std::make_unique<Impl>(options, std::move(handler), std::move(admission))) {
  impl_->daemon = MHD_start_daemon(
      MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ITC |
          MHD_USE_ERROR_LOG | MHD_USE_NO_LISTEN_SOCKET,
      /*port=*/0, /*accept=*/nullptr, nullptr, &Impl::on_request, impl_.get(),
      MHD_OPTION_EXTERNAL_LOGGER, &log_message, nullptr,  // first, so that it has all messages
      MHD_OPTION_CONNECTION_LIMIT, std::numeric_limits<unsigned>::max(),
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionBytes, MHD_OPTION_CONNECTION_TIMEOUT,
      options.idle_seconds, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK,
      &keep_escapes, nullptr, MHD_OPTION_NOTIFY_COMPLETED, &free_incoming, nullptr,
      MHD_OPTION_NOTIFY_CONNECTION, &Impl::on_connection, impl_.get(), MHD_OPTION_END);
  if (impl_->daemon == nullptr) {
    throw DeviceError("the HTTP server cannot start", {},
                      "check the limits on threads and open files (ulimit -u, ulimit -n)");
  }
  impl_->acceptor = std::thread([impl = impl_.get()] {
    impl->listener.accept_clients([impl](int socket, const sockaddr* peer, socklen_t size) {
      return MHD_add_connection(impl->daemon, socket, peer, size) == MHD_YES;
    });
  });
}

/// Responses in progress are sent before; their handlers are expected to end soon.
HttpServer::~HttpServer() {
  constexpr auto kLook = std::chrono::milliseconds(10);
  constexpr int kLooks = 200;
  impl_->listener.stop();
  impl_->acceptor.join();
  impl_->listener.close();  // no new connections
  for (int i = 0; i < kLooks && impl_->num_open > 0; ++i) std::this_thread::sleep_for(kLook);
  MHD_stop_daemon(impl_->daemon);
}

uint16_t HttpServer::port() const {
  return impl_->listener.port();
}

}  // namespace sftrun::serve
