#include "refusal.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "retry.h"
#include "sftrun/core/error.h"
#include "url.h"

namespace sftrun::hub {
namespace {

constexpr long kUnauthorized = 401, kForbidden = 403, kNotFound = 404, kTooMany = 429;

const char* kind_of(const RepoName& name) {
  return name.type == RepoType::kDataset ? "data set" : "model";
}

std::string how_to_log_in() {
  return "log in (hf auth login), or set HF_TOKEN to a token with read access";
}

[[noreturn]] void refuse_gated(const Asked& asked) {
  const bool has_token = !asked.settings.token.empty();
  throw DataError(
      fmt::format("the {} {} is gated{}", kind_of(asked.name), asked.name.id,
                  has_token ? ", and the account of your token has no access to it" : ""),
      asked.page_url,
      has_token ? fmt::format("open that page as the account of the token (from {}) and accept the "
                              "conditions, or ask for access; a fine-grained token also needs the "
                              "permission to read gated repositories",
                              asked.settings.token_source)
                : "open that page, accept the conditions, then " + how_to_log_in());
}

[[noreturn]] void refuse_missing(const Asked& asked) {
  const bool has_token = !asked.settings.token.empty();
  throw DataError(fmt::format("no {} {} on the hub", kind_of(asked.name), asked.name.id),
                  asked.page_url,
                  fmt::format("check the name; if it is private, {}",
                              has_token ? fmt::format("the token (from {}) must belong to an "
                                                      "account with read access",
                                                      asked.settings.token_source)
                                        : how_to_log_in()));
}

[[noreturn]] void refuse_token(const Asked& asked) {
  throw DataError(
      "the hub does not accept your token", asked.settings.token_source,
      fmt::format("create a new one at {} and log in again (hf auth login), or unset it "
                  "to use public repositories",
                  shown_url(asked.settings.endpoint + "/settings/tokens")));
}

[[noreturn]] void refuse_busy(const Asked& asked, const Response& response) {
  const auto asked_s = asked_delay_s(response.header("retry-after"), response.header("ratelimit"));
  const char* what = response.status == kTooMany ? "too many requests" : "the server has an error";
  throw TransientFailure(fmt::format("{} (status {}){}", what, response.status,
                                     words_of_server(response, asked.settings)),
                         asked_s);
}

}  // namespace

std::string words_of_server(const Response& response, const Settings& settings) {
  std::string words = response.header("x-error-message");
  if (words.empty()) {
    const auto body = nlohmann::json::parse(response.error_body, nullptr, false);
    const auto error = body.is_object() ? body.find("error") : body.end();
    if (error != body.end() && error->is_string()) words = error->get<std::string>();
  }
  words = printable(words, settings);
  return words.empty() ? "" : ": " + words;
}

bool is_about_a_token(const std::string& words) {
  return words.find("Invalid credentials") != std::string::npos ||
         words.find("Invalid user token") != std::string::npos ||
         words.find("Access Token") != std::string::npos ||
         words.find("expired") != std::string::npos;
}

void refuse(const Asked& asked, const Response& response) {
  const std::string code = response.header("x-error-code");
  const std::string words = words_of_server(response, asked.settings);
  if (is_transient_status(response.status)) refuse_busy(asked, response);
  if (code == "GatedRepo") refuse_gated(asked);
  if (code == "RevisionNotFound") {
    throw DataError(fmt::format("the {} {} has no revision `{}`", kind_of(asked.name),
                                asked.name.id, asked.name.revision_or_main()),
                    asked.page_url,
                    "name a branch, a tag or a commit that is listed on its page under Files");
  }
  if (code == "EntryNotFound") {
    throw DataError(fmt::format("the {} {} has no such file", kind_of(asked.name), asked.name.id),
                    shown_url(response.url, asked.settings),
                    "its page lists the files: " + asked.page_url);
  }
  if (response.status == kUnauthorized && !asked.settings.token.empty() && is_about_a_token(words))
    refuse_token(asked);
  const bool missing = response.status == kUnauthorized || response.status == kNotFound;
  if (code == "RepoNotFound" || missing) refuse_missing(asked);
  if (response.status == kForbidden) {
    throw DataError(fmt::format("the hub refuses access to the {} {}{}", kind_of(asked.name),
                                asked.name.id, words),
                    asked.page_url, "open that page to see why; " + how_to_log_in());
  }
  throw CommError(fmt::format("the hub answers with status {}{}", response.status, words),
                  shown_url(response.url, asked.settings),
                  "check that HF_ENDPOINT is a hub and that no proxy answers instead");
}

}  // namespace sftrun::hub
