#pragma once

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

/// When to try again, and how long to wait before.
namespace sftrun::hub {

/// A failure that another attempt may mend: a cut connection, a busy server, a damaged body.
struct TransientFailure : std::runtime_error {
  explicit TransientFailure(const std::string& what, std::optional<double> wait_s = {})
      : std::runtime_error(what), wait_s(wait_s) {}
  std::optional<double> wait_s;  ///< what the server asked for (Retry-After)
};

struct RetryPolicy {
  int max_attempts = 6;            ///< in a row without progress
  double first_delay_s = 1;        ///< doubled each time
  double max_delay_s = 30;         ///< never longer
  double max_asked_delay_s = 120;  ///< a server that asks for more is given up on
};

/// Seconds before the next attempt after `failures` in a row, or nullopt to give up. What the
/// server asks for is waited for; else exponential back-off, of which up to a half is taken off at
/// random so that many clients do not come back together.
/// @param unit_random uniform in [0, 1)
std::optional<double> delay_before_retry(const RetryPolicy& policy, int failures,
                                         std::optional<double> asked_s, double unit_random);

/// Seconds that answer headers ask to wait: Retry-After (the number), or the hub's
/// `RateLimit: "api";r=0;t=57`.
std::optional<double> asked_delay_s(const std::string& retry_after, const std::string& rate_limit);

/// Whether a status says that the same request may succeed later.
bool is_transient_status(long status);

/// Ends waits and transfers early. Empty: never.
using ShouldStop = std::function<bool()>;
/// @throws Error (130) if asked to stop
void throw_if_stopped(const ShouldStop& should_stop);
/// @throws Error (130) as soon as asked to stop
void wait_s(double seconds, const ShouldStop& should_stop);

/// Attempts to do one thing: counts failures in a row, waits between them.
class Retries {
 public:
  Retries(const RetryPolicy& policy, std::string what, ShouldStop should_stop);
  /// Waits before the next attempt.
  /// @param progressed whether this attempt came further than those before it
  /// @throws CommError naming what was tried, if there is to be none
  void failed(const TransientFailure& failure, bool progressed = false);

 private:
  RetryPolicy policy_;
  std::string what_;
  ShouldStop should_stop_;
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
