#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

/// HTTP/1.1, by GNU libmicrohttpd.
namespace sftrun::serve {

struct HttpRequest {
  std::string method, path;                    ///< the path is without its query, and decoded
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
  /// Whether the client still waits for the answer.
  std::function<bool()> is_connected;

  /// "" if the header was not sent
  std::string header(const std::string& name) const;
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
class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    uint16_t port = 8000;  ///< 0: any that is free
    size_t max_body_bytes = size_t{16} << 20;
    unsigned max_connections = 256;  ///< further ones wait until one is closed
    unsigned idle_seconds = 60;      ///< after which a silent client is disconnected
  };
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  /// Answers requests from now on.   @param handler called by many threads; must not throw
  /// @throws ConfigError for a host that is unknown, and for an address that is in use
  HttpServer(const Options& options, Handler handler);
  /// Ends all connections.
  ~HttpServer();

  uint16_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sftrun::serve
