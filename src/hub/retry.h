#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

/// Retries with delays.
namespace sftrun::hub {

/// A failure that a retry may fix: an interrupted connection, a busy server, a corrupt body.
struct TransientFailure : std::runtime_error {
  explicit TransientFailure(const std::string& what, std::optional<double> wait_s = {})
      : std::runtime_error(what), wait_s(wait_s) {}
  std::optional<double> wait_s;  ///< what the server asked for (Retry-After)
  bool unreachable = false;      ///< no connection was made
  bool is_busy = false;          ///< the server is there, and takes no more requests for now
};

struct RetryPolicy {
  int max_attempts = 6;            ///< consecutive attempts without progress
  double first_delay_s = 1;        ///< doubled each time
  double max_delay_s = 30;         ///< never longer
  double max_asked_delay_s = 120;  ///< give up if the server asks for more
  /// Without a connection no attempt begins later than this after the first.
  std::optional<double> max_unreachable_s = std::nullopt;
  /// A busy server is asked again until so long after the first attempt, whatever the other limits say.
  double max_busy_s = 0;
};

/// A time in which a server fails, however many requests meet it. Thread-safe.
class Outage {
 public:
  /// @param quiet_s after an outage that was told, others are not: a busy server refuses some requests
  /// and answers others
  explicit Outage(double quiet_s = 60) : quiet_s_(quiet_s) {}
  /// A request failed.   @return whether to tell: it is the first since the server last answered
  bool begins();
  /// A request was answered.   @return seconds since the outage began; nullopt: there was none to tell
  std::optional<double> ends();

 private:
  using Time = std::chrono::steady_clock::time_point;

  double quiet_s_;
  std::mutex mutex_;
  std::optional<Time> began_, told_;
  bool is_told_ = false;
};

/// Seconds before the next attempt after `failures` consecutive failures; nullopt: give up. Uses
/// the delay that the server requested, else exponential back-off, reduced by up to a half at
/// random so that clients do not retry at the same time.
/// @param unit_random uniform in [0, 1)
std::optional<double> delay_before_retry(const RetryPolicy& policy, int failures,
                                         std::optional<double> asked_s, double unit_random);

/// Seconds to wait according to response headers: Retry-After (a number or a date), or the hub's `RateLimit:
/// "api";r=0;t=57`.
std::optional<double> asked_delay_s(const std::string& retry_after, const std::string& rate_limit);

/// Whether a server with this status is there, and asks for fewer requests: 429 and 503.
bool is_busy_status(long status);
/// Whether the same request may succeed later, judged by the status.
bool is_transient_status(long status);

/// Ends waits and transfers early when it returns true. Empty: never.
using ShouldStop = std::function<bool()>;
/// @throws Error (130) if `should_stop` returns true
void throw_if_stopped(const ShouldStop& should_stop);
/// @throws Error (130) as soon as `should_stop` returns true
void wait_s(double seconds, const ShouldStop& should_stop);

/// The attempts of one operation: counts consecutive failures and waits between attempts.
class Retries {
 public:
  /// @param outage of the server: its first failure alone is logged; null: each is. Must outlive this
  Retries(const RetryPolicy& policy, std::string what, ShouldStop should_stop,
          Outage* outage = nullptr);
  /// Waits before the next attempt.
  /// @param progressed whether this attempt got further than the earlier ones
  /// @throws CommError naming the operation, if there is to be no further attempt
  void failed(const TransientFailure& failure, bool progressed = false);

 private:
  double seconds_passed() const;
  bool is_too_late(const TransientFailure& failure, double delay_s) const;
  bool waits_for_busy(const TransientFailure& failure) const;
  std::optional<double> delay_after(const TransientFailure& failure) const;
  void log(const TransientFailure& failure, double delay_s) const;

  RetryPolicy policy_;
  std::string what_;
  ShouldStop should_stop_;
  Outage* outage_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  int failures_ = 0;
};

/// Calls `attempt` until it throws no TransientFailure.
template <class Attempt>
auto with_retries(Retries retries, Attempt&& attempt) {
  for (;;) {
    try {
      return attempt();
    } catch (const TransientFailure& failure) {
      retries.failed(failure);
    }
  }
}

}  // namespace sftrun::hub
