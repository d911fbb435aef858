#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "retry.h"
#include "sftrun/hub/settings.h"

/// An HTTP client on libcurl: requests and redirects, nothing specific to the hub.
namespace sftrun::hub {

/// A body that is read while it is sent.
struct Stream {
  uint64_t size = 0;
  /// Copies bytes that begin at `offset` into `into`, and returns how many: at least one. It may be
  /// called again with an earlier offset.
  std::function<size_t(uint64_t offset, std::span<char> into)> read;
};

struct Request {
  std::string url;
  bool head = false;                      ///< headers only
  std::vector<std::string> headers = {};  ///< "Range: bytes=10-"
  std::optional<double> max_s = {};       ///< for the whole response; nullopt: while bytes come
  std::optional<std::string> body = {};   ///< POST; nullopt: GET
  std::optional<Stream> upload = {};      ///< PUT, in place of `body`
  std::optional<double> stall_s = {};     ///< in place of Settings::stall_timeout_s
  /// Sent at most once: libcurl repeats a request if a connection that it had kept ends early.
  bool only_once = false;
};

struct Response {
  long status = 0;
  std::string url;                             ///< the URL that answered, after redirects
  std::map<std::string, std::string> headers;  ///< names in lower case
  /// For a status other than 2xx: the beginning of the body. The rest is not read.
  std::string error_body;

  bool ok() const { return status >= 200 && status < 300; }
  std::string header(const std::string& name) const;  ///< empty: no such header
  /// The absolute target of a redirect; empty: no redirect.
  std::string redirect_url;
};

/// Receives the body of a 2xx response. Exceptions thrown by either function pass through `send`.
struct BodySink {
  /// Called before the first byte, when the headers are known
  std::function<void(const Response&)> begin;
  std::function<void(std::span<const char>)> write;
};

/// Sends requests one after the other over persistent connections. For one thread.
///
/// The token is sent only to the endpoint's own scheme, host and port: redirects to storage hosts
/// do not include it.
class HttpClient {
 public:
  HttpClient(const Settings& settings, ShouldStop should_stop);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Follows redirects, up to a limit and never from https to http.
  /// @param stop_at returns true for a redirect that is the wanted response, which is not followed
  /// @throws TransientFailure  no connection, a stall, an incomplete or malformed response
  /// @throws CommError  failures that a retry does not fix (certificates, too many redirects)
  Response send(Request request, const BodySink& sink = {},
                const std::function<bool(const Response&)>& stop_at = {});

 private:
  class Exchange;
  Response send_once(const Request& request, const BodySink& sink);

  const Settings& settings_;
  ShouldStop should_stop_;
  struct FreeShare {
    void operator()(void* share) const;
  };
  /// Keeps connections between requests. Each request has its own handle: up to libcurl 8.1 a
  /// reused handle keeps a pointer to a header of the previous request, which a folded line writes
  /// to.
  std::unique_ptr<void, FreeShare> share_;
};

/// A server's text for a terminal: one line, shortened, without control characters and without the
/// token in case the server echoes it.
std::string printable(std::string_view text, const Settings& settings);
/// A URL that may come from a server (a redirect's, the next page's), for messages.
std::string shown_url(const std::string& url, const Settings& settings);

}  // namespace sftrun::hub
