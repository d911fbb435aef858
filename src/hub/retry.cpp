#include "retry.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>
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

/// "Wed, 21 Oct 2015 07:28:00 GMT" (RFC 9110, section 5.6.7).
std::optional<double> seconds_until(const std::string& date) {
  std::tm time{};
  if (::strptime(date.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &time) == nullptr) return std::nullopt;
  return std::max(0.0, std::difftime(::timegm(&time), std::time(nullptr)));
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
  if (const auto seconds = seconds_until(retry_after)) return seconds;
  const size_t at = rate_limit.find(";t=");
  if (at == std::string::npos) return std::nullopt;
  return leading_number(rate_limit.substr(at + 3));
}

bool is_busy_status(long status) {
  constexpr long kTooMany = 429, kUnavailable = 503;
  return status == kTooMany || status == kUnavailable;
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

bool Outage::begins() {
  const std::lock_guard lock(mutex_);
  if (began_) return false;
  began_ = std::chrono::steady_clock::now();
  is_told_ = !told_ || std::chrono::duration<double>(*began_ - *told_).count() >= quiet_s_;
  if (is_told_) told_ = began_;
  return is_told_;
}

std::optional<double> Outage::ends() {
  const std::lock_guard lock(mutex_);
  if (!began_) return std::nullopt;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - *began_;
  began_.reset();
  return is_told_ ? std::optional(passed.count()) : std::nullopt;
}

Retries::Retries(const RetryPolicy& policy, std::string what, ShouldStop should_stop,
                 Outage* outage)
    : policy_(policy),
      what_(std::move(what)),
      should_stop_(std::move(should_stop)),
      outage_(outage) {}

double Retries::seconds_passed() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

bool Retries::is_too_late(const TransientFailure& failure, double delay_s) const {
  return failure.unreachable && policy_.max_unreachable_s &&
         seconds_passed() + delay_s > *policy_.max_unreachable_s;
}

bool Retries::waits_for_busy(const TransientFailure& failure) const {
  return failure.is_busy && policy_.max_busy_s > 0;
}

std::optional<double> Retries::delay_after(const TransientFailure& failure) const {
  RetryPolicy policy = policy_;
  if (!waits_for_busy(failure))
    return delay_before_retry(policy, failures_, failure.wait_s, random_unit());
  constexpr double kShortestS = 1;  // for servers that ask for 0
  policy.max_attempts = std::numeric_limits<int>::max();
  policy.max_asked_delay_s = policy.max_busy_s;
  auto delay = delay_before_retry(policy, failures_, failure.wait_s, random_unit());
  if (delay) delay = std::max(*delay, std::min(policy.first_delay_s, kShortestS));
  return delay && seconds_passed() + *delay <= policy.max_busy_s ? delay : std::nullopt;
}

/// Of an outage once, whatever delays follow.
void Retries::log(const TransientFailure& failure, double delay_s) const {
  if (outage_ == nullptr)
    return log::info("{}: {}; trying again in {:.1f} s", what_, failure.what(), delay_s);
  if (!outage_->begins()) return;
  if (waits_for_busy(failure))
    log::info("{}: {}; asking again for up to {:.0f} s", what_, failure.what(), policy_.max_busy_s);
  else
    log::info("{}: {}; trying again, {} attempts in all", what_, failure.what(),
              policy_.max_attempts);
}

void Retries::failed(const TransientFailure& failure, bool progressed) {
  failures_ = progressed ? 1 : failures_ + 1;
  const std::optional<double> delay = delay_after(failure);
  if (!delay || is_too_late(failure, *delay)) {
    const double longest_s =
        waits_for_busy(failure) ? policy_.max_busy_s : policy_.max_asked_delay_s;
    const bool asked = failure.wait_s && *failure.wait_s > longest_s;
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
  log(failure, *delay);
  wait_s(*delay, should_stop_);
}

}  // namespace sftrun::hub
