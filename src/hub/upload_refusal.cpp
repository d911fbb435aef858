#include "upload_refusal.h"

#include <fmt/format.h>

#include "refusal.h"
#include "retry.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "url.h"

namespace sftrun::hub {
namespace {

constexpr long kBadRequest = 400, kNoToken = 401, kNeedsPayment = 402, kMayNotWrite = 403,
               kAbsent = 404, kConflict = 409, kPreconditionFailed = 412, kTooLarge = 413,
               kUnprocessable = 422;

std::string advice_on_token(const UploadStep& step) {
  return fmt::format(
      "use a token with write access to it (yours is from {}): create one at {} and run `hf auth "
      "login`, or set HF_TOKEN",
      step.settings.token_source, shown_url(step.settings.endpoint + "/settings/tokens"));
}

/// Whether the hub refuses the repository's name.
bool is_about_the_name(const std::string& words) {
  const std::string lower = ascii_lower(words);
  return lower.find("repo name") != std::string::npos ||
         lower.find("repository name") != std::string::npos ||
         lower.find("repo_name") != std::string::npos || lower.find("repo id") != std::string::npos;
}

[[noreturn]] void refuse_for_now(const UploadStep& step, const Response& response,
                                 const std::string& words) {
  constexpr long kTooMany = 429;
  const char* why = response.status == kTooMany ? "too many requests"
                    : response.status == kConflict || response.status == kPreconditionFailed
                        ? "another change is in progress"
                        : "the server has an error";
  throw TransientFailure(
      fmt::format("{}: {} (status {}){}", step.what, why, response.status, words),
      asked_delay_s(response.header("retry-after"), response.header("ratelimit")));
}

}  // namespace

void refuse_upload(const UploadStep& step, const Response& response) {
  const std::string words = words_of_server(response, step.settings);
  const bool conflicts = response.status == kConflict || response.status == kPreconditionFailed;
  if (conflicts || is_transient_status(response.status)) refuse_for_now(step, response, words);
  switch (response.status) {
    case kBadRequest:
    case kUnprocessable:
      if (!is_about_the_name(words)) break;
      throw ConfigError(
          step.what + words, step.page_url,
          "give another owner/name: up to 96 letters, digits, `-`, `_` and `.`, beginning and "
          "ending with a letter or digit, without `--` and `..`");
    case kNoToken:
      throw DataError(
          fmt::format("{}: the hub does not accept your token{}", step.what,
                      is_about_a_token(words) ? "" : words),
          step.settings.token_source,
          fmt::format("create a new one with write access at {} and run `hf auth login`, or set "
                      "HF_TOKEN",
                      shown_url(step.settings.endpoint + "/settings/tokens")));
    case kNeedsPayment:
      throw DataError(step.what + words, step.page_url,
                      "the account has reached a limit of its plan: free storage, or change the "
                      "plan on its settings page");
    case kMayNotWrite:
      throw DataError(fmt::format("{}: the token may not write there{}", step.what, words),
                      step.page_url, advice_on_token(step));
    case kAbsent:
      throw DataError(fmt::format("{}: no such repository or branch, or the token may not see it{}",
                                  step.what, words),
                      step.page_url, "check the name and the branch; " + advice_on_token(step));
    case kTooLarge:
      throw DataError(fmt::format("{}: too large for the server (status {}){}", step.what,
                                  response.status, words),
                      step.page_url,
                      "upload smaller files: `sftrun merge --max-shard-size` divides a model; or "
                      "raise the limit of a proxy in between");
    default:
      break;
  }
  throw CommError(
      fmt::format("{}: the server answers with status {}{}", step.what, response.status, words),
      shown_url(response.url, step.settings),
      "check that HF_ENDPOINT is a hub and that no proxy answers instead");
}

}  // namespace sftrun::hub
