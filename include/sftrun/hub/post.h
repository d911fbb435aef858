#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/hub/settings.h"

/// Requests to a user's own server: JSON in, JSON out.
namespace sftrun::hub {

class Outage;

/// For requests to one server: what fails them is logged once, until it answers again.
std::shared_ptr<Outage> new_outage();

struct PostOptions {
  double timeout_s = 60;     ///< of an attempt, from connecting to the last byte
  int max_attempts = 3;      ///< at failures that another attempt may fix
  double first_delay_s = 1;  ///< before the second attempt; doubled each time
  /// A busy server (429, 503) is asked again until so long after the first attempt, however many
  /// attempts that takes; 0: it counts as any failure.
  double max_busy_s = 0;
  std::shared_ptr<Outage> outage = {};  ///< null: each failure is logged
  Secret token = {};  ///< sent as `Authorization: Bearer`, and never shown; empty: none
  std::string token_scheme = "Bearer";  ///< "Basic": the token is user:password in base64
  size_t max_response_bytes = size_t{64} << 20;
  std::function<bool()> should_stop = {};  ///< asked often; true ends the request. Empty: never
};

/// A request that failed.
struct RequestError : CommError {
  RequestError(std::optional<int> status, std::string message, std::string where, std::string fix)
      : CommError(std::move(message), std::move(where), std::move(fix)), status(status) {}
  /// HTTP's, with which the server refused; nullopt: no response, or one that cannot be read.
  std::optional<int> status;
};

/// The token of a server, in a variable of the environment.
/// @param whose for errors: "the reward judge"   @param where the variable was named   @param key that
/// names it
/// @throws ConfigError if it is not set, or is no token
Secret token_in_variable(const std::string& variable, const std::string& whose,
                         const std::string& where, const std::string& key);

/// Sends JSON by POST and returns the body of the response. Certificates and proxies are those of
/// the environment, as for the hub. No connection, a time-out, a connection that ends early and the
/// states 408, 425, 429 and 5xx are tried again; what the server asks for (Retry-After) is kept.
/// Redirects are not followed.
/// @param what that the user asked for, for errors: "reward `judge`"
/// @throws RequestError naming `what` and the URL   @throws Error (130) if `should_stop` returns true
std::string post_json(const std::string& url, const std::string& json, const std::string& what,
                      const PostOptions& options);
/// The same by GET, without a body.
std::string get_json(const std::string& url, const std::string& what, const PostOptions& options);

/// Percent-encodes a value of a query.
std::string query_value(std::string_view text);

}  // namespace sftrun::hub
