#include "retry.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/expect_error.h"

namespace sftrun::hub {
namespace {

using test::expect_error;

TEST(Retry, DelaysDoubleUpToALimit) {
  const RetryPolicy policy{.max_attempts = 8, .first_delay_s = 1, .max_delay_s = 10};
  std::vector<double> delays;
  for (int failures = 1; failures < 8; ++failures)
    delays.push_back(*delay_before_retry(policy, failures, {}, 0));
  EXPECT_EQ(delays, (std::vector<double>{1, 2, 4, 8, 10, 10, 10}));
  EXPECT_FALSE(delay_before_retry(policy, 8, {}, 0));
}

TEST(Retry, JitterReducesDelaysByUpToAHalf) {
  const RetryPolicy policy{.first_delay_s = 4};
  EXPECT_EQ(delay_before_retry(policy, 1, {}, 0.5), 3);
  EXPECT_GT(*delay_before_retry(policy, 1, {}, 0.999), 2);
}

TEST(Retry, UsesTheDelayOfTheServer) {
  const RetryPolicy policy{.max_attempts = 3, .max_asked_delay_s = 60};
  EXPECT_EQ(delay_before_retry(policy, 1, 42.0, 0.9), 42);
  EXPECT_EQ(delay_before_retry(policy, 1, 0.0, 0.9), 0);
  EXPECT_FALSE(delay_before_retry(policy, 1, 61.0, 0.9));
  EXPECT_FALSE(delay_before_retry(policy, 3, 1.0, 0.9));
}

TEST(Retry, HeadersThatAskToWait) {
  EXPECT_EQ(asked_delay_s("17", ""), 17);
  EXPECT_EQ(asked_delay_s("0", R"("api";r=0;t=57)"), 0);
  EXPECT_EQ(asked_delay_s("", R"("api";r=0;t=57)"), 57);
  for (const char* nothing : {"", "soon", "-5", "nan", "inf"})
    EXPECT_FALSE(asked_delay_s(nothing, "")) << nothing;
  EXPECT_FALSE(asked_delay_s("", R"("api";r=0)"));
  EXPECT_EQ(asked_delay_s("Wed, 21 Oct 2015 07:28:00 GMT", ""), 0) << "it is past";
  EXPECT_GT(asked_delay_s("Wed, 21 Oct 2915 07:28:00 GMT", ""), 1e9);
}

TEST(Retry, TemporaryStatuses) {
  for (const long status : {408, 425, 429, 500, 502, 503, 504, 520})
    EXPECT_TRUE(is_transient_status(status)) << status;
  for (const long status : {200, 301, 400, 401, 403, 404, 410, 416, 501, 505, 600})
    EXPECT_FALSE(is_transient_status(status)) << status;
}

TEST(Retry, ProgressResetsTheCount) {
  const RetryPolicy policy{.max_attempts = 3, .first_delay_s = 0};
  Retries retries(policy, "file", {});
  const TransientFailure cut("cut");
  for (int i = 0; i < 10; ++i) retries.failed(cut, /*progressed=*/true);
  retries.failed(cut);
  expect_error<CommError>([&] { retries.failed(cut); }, {"cut", "the last of 3 attempts", "file"});
}

TEST(Retry, WithoutAConnectionItGivesUpSoon) {
  const RetryPolicy policy{.max_attempts = 5, .first_delay_s = 0.01, .max_unreachable_s = 0.001};
  TransientFailure unreachable("no route");
  unreachable.unreachable = true;
  Retries retries(policy, "file", {});
  retries.failed(TransientFailure("busy"));
  expect_error<CommError>([&] { retries.failed(unreachable); }, {"no route", "the last of 2"});
  EXPECT_EQ(test::error_of<CommError>([&] {
              Retries(policy, "file", {}).failed(unreachable);
            }).find("attempts"),
            std::string::npos);
}

TEST(Retry, ABusyServerIsAskedForATime) {
  const RetryPolicy policy{.max_attempts = 2, .first_delay_s = 0.01, .max_busy_s = 0.1};
  TransientFailure busy("status 429", 0.0);
  busy.is_busy = true;
  Retries retries(policy, "judge", {});
  for (int attempt = 0; attempt < 4; ++attempt) retries.failed(busy);  // more than max_attempts
  TransientFailure later("status 429", 60.0);
  later.is_busy = true;
  expect_error<CommError>([&] { retries.failed(later); }, {"the server asks to wait 60 s"});
  expect_error<CommError>([&] { retries.failed(TransientFailure("cut")); }, {"of 6 attempts"});
  EXPECT_TRUE(is_busy_status(429) && is_busy_status(503) && !is_busy_status(500));
}

TEST(Retry, AnOutageBeginsAndEndsOnce) {
  Outage outage(/*quiet_s=*/0);
  EXPECT_FALSE(outage.ends());
  EXPECT_TRUE(outage.begins());
  EXPECT_FALSE(outage.begins());
  EXPECT_TRUE(outage.ends());
  EXPECT_FALSE(outage.ends());
  EXPECT_TRUE(outage.begins());
  Outage quiet;
  EXPECT_TRUE(quiet.begins());
  EXPECT_TRUE(quiet.ends());
  EXPECT_FALSE(quiet.begins()) << "it was told a moment ago";
  EXPECT_FALSE(quiet.ends());
}

TEST(Retry, StopsWhileItWaits) {
  const RetryPolicy policy{.first_delay_s = 1000, .max_delay_s = 1000};
  int asked = 0;
  Retries retries(policy, "file", [&] { return ++asked > 2; });
  try {
    retries.failed(TransientFailure("cut"));
    ADD_FAILURE() << "did not stop";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInterrupted);
  }
}

TEST(Retry, RetriesUntilSuccess) {
  int calls = 0;
  const int result = with_retries(Retries({.first_delay_s = 0}, "it", {}), [&] {
    if (++calls < 4) throw TransientFailure("not yet");
    return calls;
  });
  EXPECT_EQ(result, 4);
}

}  // namespace
}  // namespace sftrun::hub
