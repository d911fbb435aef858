#include "retry.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <random>
#include <thread>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"

namespace sftrun::hub {
namespace {

std::optional<double> leading_number(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(number) || number < 0) return std::nullopt;
  return number;
}

double random_unit() {
  thread_local std::minstd_rand engine{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(engine);
}

}  // namespace

std::optional<double> delay_before_retry(const RetryPolicy& policy, int failures,
                                         std::optional<double> asked_s, double unit_random) {
  if (failures >= policy.max_attempts) return std::nullopt;
  if (asked_s) {
    if (*asked_s > policy.max_asked_delay_s) return std::nullopt;
    return *asked_s;
  }
  const double full = std::min(policy.first_delay_s * std::exp2(failures - 1), policy.max_delay_s);
  return full * (1 - unit_random / 2);
}

std::optional<double> asked_delay_s(const std::string& retry_after, const std::string& rate_limit) {
  if (const auto seconds = leading_number(retry_after)) return seconds;
  const size_t at = rate_limit.find(";t=");
  if (at == std::string::npos) return std::nullopt;
  return leading_number(rate_limit.substr(at + 3));
}

bool is_transient_status(long status) {
  constexpr long kTimeout = 408, kTooEarly = 425, kTooMany = 429, kFirst5xx = 500, kLast5xx = 599;
  constexpr long kNotImplemented = 501, kVersion = 505;
  if (status == kNotImplemented || status == kVersion) return false;
  return status == kTimeout || status == kTooEarly || status == kTooMany ||
         (status >= kFirst5xx && status <= kLast5xx);
}

void throw_if_stopped(const ShouldStop& should_stop) {
  if (should_stop && should_stop()) {
    throw Error(ExitCode::kInterrupted, "the download was interrupted", {},
                "rerun the same command to resume");
  }
}

void wait_s(double seconds, const ShouldStop& should_stop) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kSlice = std::chrono::milliseconds(50);
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    throw_if_stopped(should_stop);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) return;
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(kSlice, left));
  }
}

Retries::Retries(const RetryPolicy& policy, std::string what, ShouldStop should_stop)
    : policy_(policy), what_(std::move(what)), should_stop_(std::move(should_stop)) {}

bool Retries::is_too_late(const TransientFailure& failure, double delay_s) const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began_;
  return failure.unreachable && policy_.max_unreachable_s &&
         passed.count() + delay_s > *policy_.max_unreachable_s;
}

void Retries::failed(const TransientFailure& failure, bool progressed) {
  failures_ = progressed ? 1 : failures_ + 1;
  const auto delay = delay_before_retry(policy_, failures_, failure.wait_s, random_unit());
  if (!delay || is_too_late(failure, *delay)) {
    const bool asked = failure.wait_s && *failure.wait_s > policy_.max_asked_delay_s;
    throw CommError(
        asked ? fmt::format("{}; the server asks to wait {:.0f} s", failure.what(), *failure.wait_s)
        : failures_ == 1 ? failure.what()
                         : fmt::format("{} (the last of {} attempts)", failure.what(), failures_),
        what_,
        asked ? "run the same command again then; with a token (HF_TOKEN, hf auth login) the hub "
                "allows more requests"
              : "check the network (HF_ENDPOINT, proxies, firewall), then rerun the same command "
                "to resume");
  }
  log::info("{}: {}; trying again in {:.1f} s", what_, failure.what(), *delay);
  wait_s(*delay, should_stop_);
}

}  // namespace sftrun::hub
