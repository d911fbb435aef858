#include <gtest/gtest.h>

#include <cstdlib>

#include "reward/answers.h"
#include "reward/judge_server.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/log.h"
#include "sftrun/hub/post.h"
#include "support/expect_error.h"

namespace sftrun::reward {
namespace {

using test::JudgeServer;

class HttpRewardTest : public ::testing::Test {
 protected:
  HttpRewardTest() { log::configure({.console = log::Level::kOff}); }

  static std::unique_ptr<Rewards> judge(const std::string& url, const std::string& settings = "",
                                        double busy_s = 0) {
    return std::make_unique<Rewards>(
        test::specs_of("{name: http, label: judge, url: '" + url + "'" +
                       (settings.empty() ? "" : ", " + settings) + "}"),
        Surroundings{.retry_delay_s = 0.05, .busy_s = busy_s});
  }
  static std::vector<Value> values(Rewards& rewards, const std::vector<std::string>& texts) {
    const test::JudgedAnswers judged(test::records_of(texts));
    return rewards.judge(judged.answers).rewards;
  }
  template <class E>
  static void expect_refused(const std::string& way, std::initializer_list<std::string> parts,
                             const std::string& settings = "retries: 0") {
    SCOPED_TRACE(way);
    const JudgeServer server(way);
    const auto rewards = judge(server.url(), settings);
    test::expect_error<E>([&] { values(*rewards, {"a", "bc"}); }, parts);
  }
};

TEST_F(HttpRewardTest, JudgesBatches) {
  const JudgeServer server("length");
  const auto rewards = judge(server.url());
  EXPECT_EQ(values(*rewards, {"a", "", "abc\n\xC3\xA4"}), (std::vector<Value>{1, std::nullopt, 5}));
  EXPECT_EQ(values(*rewards, {std::string(1 << 21, 'x')}), (std::vector<Value>{1 << 21}));
}

TEST_F(HttpRewardTest, ABusyServerIsAskedAgain) {
  const JudgeServer server("busy 2");
  EXPECT_EQ(values(*judge(server.url(), "retries: 2"), {"a"}), (std::vector<Value>{1}));
  expect_refused<CommError>("busy 9",
                            {"status 503: come back later (the last of 3 attempts)",
                             "the server of the reward judge (http://127"},
                            "retries: 2");
}

/// Whatever `retries` says: it is there.
TEST_F(HttpRewardTest, AServerThatSaysThatItIsBusyIsWaitedFor) {
  for (const char* way : {"limits 6", "busy 4"}) {
    const JudgeServer server(way);
    EXPECT_EQ(values(*judge(server.url(), "retries: 1", 60), {"a"}), (std::vector<Value>{1}));
  }
  const JudgeServer server("limits 1000");
  test::expect_error<CommError>(
      [&] { values(*judge(server.url(), "retries: 1", 0.3), {"a"}); },
      {"status 429: too many requests (the last of", "the server is busy: ask it for fewer"});
}

TEST_F(HttpRewardTest, AServerThatVanishesIsNamed) {
  const JudgeServer server("vanishes");
  const auto rewards = judge(server.url(), "retries: 1");
  EXPECT_EQ(values(*rewards, {"a"}), (std::vector<Value>{1}));
  test::expect_error<CommError>(
      [&] { values(*rewards, {"a"}); },
      {"(the last of 2 attempts)", "the server of the reward judge", "check that the server runs"});
}

TEST_F(HttpRewardTest, ASlowServerIsLate) {
  const double begun_s = monotonic_seconds();
  expect_refused<CommError>("slow 30", {"within 0.5 s"}, "retries: 0, timeout: 0.5");
  EXPECT_LT(monotonic_seconds() - begun_s, 20);
}

TEST_F(HttpRewardTest, WrongAnswersAreNamed) {
  expect_refused<DataError>("short", {"answers 1 reward to 2 records", "http://127"});
  expect_refused<DataError>("text", {"answers `fine`, which is not {\"rewards\": […]}"});
  expect_refused<DataError>("nan", {"rewards"});
  expect_refused<CommError>("wrong", {"status 422: unknown key \"colour\""}, "retries: 5");
  expect_refused<CommError>("moved", {"redirects to http://127.0.0.1", "/other",
                                      "give the address that it redirects to"});
}

TEST_F(HttpRewardTest, AdviceGoesByTheStatusAndNotByTheText) {
  expect_refused<hub::RequestError>("quotes", {"status 401", "check that the server runs"});
  const JudgeServer server("wrong");
  const auto status_of = [](const std::string& url) -> std::optional<int> {
    try {
      hub::post_json(url, R"({"records": []})", "the server", {.max_attempts = 1});
    } catch (const hub::RequestError& error) {
      return error.status;
    }
    return 200;
  };
  EXPECT_EQ(status_of(server.url()), 422);
  EXPECT_EQ(status_of("http://127.0.0.1:1"), std::nullopt);
}

TEST_F(HttpRewardTest, TheTokenComesFromTheEnvironment) {
  const JudgeServer server("token");
  const std::string settings = "token_variable: SFTRUN_TEST_JUDGE_TOKEN, retries: 0";
  ::unsetenv("SFTRUN_TEST_JUDGE_TOKEN");
  test::expect_error<ConfigError>(
      [&] { judge(server.url(), settings); },
      {"the variable SFTRUN_TEST_JUDGE_TOKEN with the token of the reward judge is not set"});
  ::setenv("SFTRUN_TEST_JUDGE_TOKEN", "secret", 1);
  EXPECT_EQ(values(*judge(server.url(), settings), {"a"}), (std::vector<Value>{1}));
  ::setenv("SFTRUN_TEST_JUDGE_TOKEN", "other", 1);
  test::expect_error<CommError>([&] { values(*judge(server.url(), settings), {"a"}); },
                                {"status 401: who are you", "give the server's token"});
  ::unsetenv("SFTRUN_TEST_JUDGE_TOKEN");
}

TEST_F(HttpRewardTest, NothingListens) {
  std::string url;
  {
    const JudgeServer server("length");
    url = server.url();
  }
  test::expect_error<CommError>([&] { values(*judge(url, "retries: 1"), {"a"}); },
                                {"the last of 2 attempts", url});
}

}  // namespace
}  // namespace sftrun::reward
