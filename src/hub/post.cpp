#include "sftrun/hub/post.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "http.h"
#include "retry.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "url.h"

namespace sftrun::hub {
namespace {

/// The client's settings for a server that is not the hub. No variable of the hub is read but those
/// of certificates.
Settings settings_of_server(const std::string& url, const PostOptions& options) {
  Settings settings;
  settings.endpoint = origin_of(url);  // the only one that gets the token
  settings.token = options.token;
  settings.token_scheme = options.token_scheme;
  settings.connect_timeout_s = options.timeout_s;
  settings.stall_timeout_s = options.timeout_s;
  for (const char* name : {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}) {
    const char* bundle = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): as settings.cpp
    if (bundle != nullptr && *bundle != '\0' && settings.ca_bundle.empty())
      settings.ca_bundle = bundle;
  }
  return settings;
}

class Poster {
 public:
  /// @param json null: GET
  Poster(const std::string& url, const std::string* json, const PostOptions& options)
      : url_(url),
        json_(json),
        options_(options),
        settings_(settings_of_server(url, options)),
        client_(settings_, options.should_stop) {}

  /// One attempt.   @throws TransientFailure, CommError
  std::string send() {
    status_.reset();
    std::string body;
    Request request{
        .url = url_, .headers = {"Accept: application/json"}, .max_s = options_.timeout_s};
    if (json_ != nullptr) {
      request.headers.emplace_back("Content-Type: application/json");
      request.body = *json_;
    }
    const Response response =
        client_.send(std::move(request),
                     {.begin = [&](const Response&) { body.clear(); },
                      .write = [&](std::span<const char> bytes) { take(bytes, body); }},
                     /*stop_at=*/[](const Response&) { return true; });
    if (response.ok()) return body;
    status_ = static_cast<int>(response.status);
    refuse(response);
  }

  /// With which the server refused the last attempt; nullopt: it did not.
  std::optional<int> status() const { return status_; }

 private:
  void take(std::span<const char> bytes, std::string& body) const {
    if (body.size() + bytes.size() > options_.max_response_bytes)
      throw CommError(
          fmt::format("the response has more than {} bytes", options_.max_response_bytes));
    body.append(bytes.data(), bytes.size());
  }

  [[noreturn]] void refuse(const Response& response) const {
    if (!response.redirect_url.empty())
      throw CommError(
          fmt::format("the server redirects to {}", shown_url(response.redirect_url, settings_)));
    const std::string said = printable(response.error_body, settings_);
    const std::string what = fmt::format("the server answers with status {}{}{}", response.status,
                                         said.empty() ? "" : ": ", said);
    if (!is_transient_status(response.status)) throw CommError(what);
    TransientFailure failure(what, asked_delay_s(response.header("retry-after"), {}));
    failure.is_busy = is_busy_status(response.status);
    throw failure;
  }

  const std::string& url_;
  const std::string* json_;
  const PostOptions& options_;
  Settings settings_;
  HttpClient client_;
  std::optional<int> status_;
};

/// @param status of a request that failed
std::string advice_on(std::optional<int> status) {
  constexpr std::array<std::pair<int, std::string_view>, 5> kAdvice = {
      {{401, "give the server's token: name the variable of the environment that holds it"},
       {403, "give a token that may do this: name the variable that holds it"},
       {404, "check the address, and the name of the model if one is given"},
       {413, "the request is too large for the server: let it take larger ones"},
       {429, "the server is busy: ask it for fewer at a time, or raise its limits"}}};
  constexpr int kHundred = 100, kRedirects = 3, kRefuses = 4;
  for (const auto& [refused, advice] : kAdvice)
    if (status == refused) return std::string(advice);
  switch (status.value_or(0) / kHundred) {
    case kRedirects:
      return "give the address that it redirects to";
    case kRefuses:
      return "the server refuses the request: do what it says, or correct the request";
    default:
      return "check that the server runs at this address and what it logs";
  }
}

/// @param json null: GET
std::string answered(const std::string& url, const std::string* json, const std::string& what,
                     const PostOptions& options) {
  const std::string place = fmt::format("{} ({})", what, shown_url(url));
  const RetryPolicy policy{.max_attempts = options.max_attempts,
                           .first_delay_s = options.first_delay_s,
                           .max_busy_s = options.max_busy_s};
  Poster poster(url, json, options);
  try {
    std::string body =
        with_retries(Retries(policy, place, options.should_stop, options.outage.get()),
                     [&] { return poster.send(); });
    if (options.outage)
      if (const auto seconds = options.outage->ends())
        log::info("{}: answers again, after {:.0f} s", place, *seconds);
    return body;
  } catch (const CommError& error) {
    throw RequestError(poster.status(), error.message(), place, advice_on(poster.status()));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kInterrupted) throw;
    throw Error(ExitCode::kInterrupted, "the request was interrupted", place);
  }
}

}  // namespace

std::shared_ptr<Outage> new_outage() {
  return std::make_shared<Outage>();
}

Secret token_in_variable(const std::string& variable, const std::string& whose,
                         const std::string& where, const std::string& key) {
  const char* token = std::getenv(variable.c_str());  // NOLINT(concurrency-mt-unsafe)
  if (token == nullptr || *token == '\0')
    throw ConfigError(
        fmt::format("the variable {} with the token of {} is not set", variable, whose), where,
        fmt::format("export {}=…, or remove `{}`", variable, key));
  if (std::string_view(token).find_first_of("\r\n") != std::string_view::npos)
    throw ConfigError(fmt::format("the variable {} has a line end", variable), where,
                      "set it to the token alone");
  return Secret(token);
}

std::string post_json(const std::string& url, const std::string& json, const std::string& what,
                      const PostOptions& options) {
  return answered(url, &json, what, options);
}

std::string query_value(std::string_view text) {
  return quoted(text, /*keep_slashes=*/false);
}

std::string get_json(const std::string& url, const std::string& what, const PostOptions& options) {
  return answered(url, nullptr, what, options);
}

}  // namespace sftrun::hub
