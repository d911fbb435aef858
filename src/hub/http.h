#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "retry.h"
#include "sftrun/hub/settings.h"

/// HTTP by libcurl: one request, its redirects, nothing of what it is for.
namespace sftrun::hub {

struct Request {
  std::string url;
  bool head = false;                      ///< headers only
  std::vector<std::string> headers = {};  ///< "Range: bytes=10-"
};

struct Response {
  long status = 0;
  std::string url;                             ///< that answered, after redirects
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string error_body;  ///< of a status other than 2xx, its beginning: what the server says

  bool ok() const { return status >= 200 && status < 300; }
  std::string header(const std::string& name) const;  ///< empty: not there
  /// Redirected, and where to; empty: not redirected. Absolute.
  std::string redirect_url;
};

/// What a 2xx answer's body goes to. Exceptions of either pass through `send`.
struct BodySink {
  std::function<void(const Response&)> begin;  ///< before the first byte, headers known
  std::function<void(std::span<const char>)> write;
};

/// Sends one request after another over kept connections. For one thread.
///
/// The token goes to the endpoint's own scheme, host and port, and nowhere else: redirects to
/// storage hosts carry none.
class HttpClient {
 public:
  HttpClient(const Settings& settings, ShouldStop should_stop);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Follows redirects, a limited number of them and never from https to http.
  /// @param stop_at a redirect that is the answer sought: it is not followed
  /// @throws TransientFailure  no connection, a stall, a cut or malformed answer
  /// @throws CommError  what another attempt would not mend (certificates, endless redirects)
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
  /// Connections outlive the requests: each has a handle of its own, for up to libcurl 8.1 one that
  /// is used again keeps a pointer to a header of before, which a folded line then writes to.
  std::unique_ptr<void, FreeShare> share_;
};

/// What a server said, fit for a terminal: one line, not long, without control characters and
/// without the token, should it be echoed.
std::string printable(std::string_view text, const Settings& settings);
/// A URL that may be a server's (a redirect's, the next page's), for messages.
std::string shown_url(const std::string& url, const Settings& settings);

}  // namespace sftrun::hub
