#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

/// HTTP/1.1, by GNU libmicrohttpd.
namespace sftrun::serve {

struct HttpRequest {
  /// The path is without its query, decoded, and has no control characters.
  std::string method, path;
  /// Names in lower case. Host is that of a target in absolute form, "http://host/path", if it has one.
  std::map<std::string, std::string> headers;
  std::string body;
  /// The body's part of the memory that all bodies may take.
  std::shared_ptr<void> body_memory = {};
  /// Whether the client still waits for the answer.
  std::function<bool()> is_connected;

  /// "" if the header was not sent
  std::string header(const std::string& name) const;
  /// Gives the body's memory to other requests, once it has been read.
  void drop_body();
};

struct HttpResponse {
  int status = 200;
  std::map<std::string, std::string> headers;
  std::string body;
  /// Instead of `body`: writes the next part into `out`; called until it returns false. The object is
  /// destroyed at the end of the response, or when the client has gone. An empty part is allowed.
  std::function<bool(std::string& out)> stream;
};

/// A thread for each connection.
///
/// Where all connections are taken, further clients wait. Then the connection that has been silent or
/// slow for longest gives way, after `patience`: one whose request is not complete, that is between
/// two requests, or that does not read its answer. Those whose answers are in progress stay.
class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    uint16_t port = 8000;  ///< 0: any that is free
    size_t max_body_bytes = size_t{16} << 20;
    /// Of all bodies that are kept at a moment. The last quarter is for those up to kSmallBody.
    size_t max_bodies_bytes = size_t{128} << 20;
    size_t max_connections = 256;  ///< fewer if the process may not open as many files
    unsigned idle_seconds = 60;    ///< after which a silent client is disconnected
    std::chrono::milliseconds patience = std::chrono::seconds(5);
    std::chrono::milliseconds max_request_time = std::chrono::minutes(2);  ///< until it is complete
    std::chrono::milliseconds max_send_time = std::chrono::minutes(10);    ///< of a finished answer
  };
  static constexpr size_t kSmallBody = size_t{64} << 10;

  /// May move from the request, and drop its body.
  using Handler = std::function<HttpResponse(HttpRequest&)>;
  /// Refuses a request by its headers, before its body is read, of which then nothing is kept.
  using Admission = std::function<std::optional<HttpResponse>(const HttpRequest&)>;

  /// Answers requests from now on.   @param handler, admission called by many threads; must not throw
  /// anything but std::bad_alloc, which is answered with status 503
  /// @throws ConfigError for a host that is unknown, and for an address that is in use
  HttpServer(const Options& options, Handler handler, Admission admission = {});
  /// Ends all connections.
  ~HttpServer();

  uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sftrun::serve
