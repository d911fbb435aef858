#include "../../src/serve/waiting_answers.h"

#include <gtest/gtest.h>

#include <thread>

#include "sftrun/serve/http_status.h"
#include "support/served_tiny.h"

namespace sftrun::serve {
namespace {

using std::chrono_literals::operator""ms;

class WaitingAnswersTest : public ::testing::Test {
 protected:
  using Jobs = std::vector<std::unique_ptr<AnswerJob>>;
  /// The answers to a request for so many.
  Jobs jobs(size_t count) {
    CompletionRequest request = parse_completion({{"prompt", "a"}}, *tiny_.models[0]);
    request.num_choices = static_cast<int64_t>(count);
    channels_.push_back(std::make_shared<AnswerChannel>());
    return jobs_of(*tiny_.models[0], request, channels_.back());
  }
  int status_of_adding(size_t count) {
    try {
      waiting_.add(jobs(count));
    } catch (const ApiError& error) {
      return error.status();
    }
    return 200;
  }
  /// Takes up to `most`.
  Jobs take(size_t most) {
    Jobs taken;
    waiting_.offer([&](std::unique_ptr<AnswerJob>& next) {
      if (taken.size() == most) return false;
      taken.push_back(std::move(next));
      return true;
    });
    return taken;
  }

  ServedTiny tiny_;
  std::vector<std::shared_ptr<AnswerChannel>> channels_;
  WaitingAnswers waiting_{{.batch_size = 2, .max_waiting = 3}};
};

TEST_F(WaitingAnswersTest, AreTakenInTheOrderOfArrival) {
  waiting_.add(jobs(2));
  waiting_.add(jobs(1));
  const Jobs first = take(1), rest = take(5);
  ASSERT_EQ(first.size(), 1U);
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(first[0]->channel, channels_[0]);
  EXPECT_EQ(first[0]->choice, 0U);
  EXPECT_EQ(rest[0]->channel, channels_[0]);
  EXPECT_EQ(rest[0]->choice, 1U);
  EXPECT_EQ(rest[1]->channel, channels_[1]);
  EXPECT_TRUE(take(1).empty());
}

TEST_F(WaitingAnswersTest, CountWithThoseInProgressAgainstTheLimit) {
  EXPECT_EQ(status_of_adding(6), 400) << "never possible";
  EXPECT_EQ(status_of_adding(4), 200);
  EXPECT_EQ(status_of_adding(2), 429);
  EXPECT_EQ(waiting_.load().num_waiting, 4U) << "none of a refused request";
  EXPECT_EQ(take(2).size(), 2U);
  EXPECT_EQ(waiting_.load().num_active, 2U);
  EXPECT_EQ(waiting_.load().num_waiting, 2U);
  EXPECT_EQ(status_of_adding(2), 429) << "those in progress count";
  waiting_.report(1, 7);
  waiting_.report(0, 5);
  EXPECT_EQ(waiting_.load().num_tokens, 12U);
  EXPECT_EQ(status_of_adding(3), 200);
  EXPECT_EQ(status_of_adding(1), 429);
}

TEST_F(WaitingAnswersTest, AreDroppedIfNobodyReadsThem) {
  waiting_.add(jobs(2));
  waiting_.add(jobs(1));
  channels_[0]->cancel();
  const Jobs taken = take(5);
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0]->channel, channels_[1]);
  EXPECT_EQ(waiting_.load().num_active, 1U);
  EXPECT_EQ(waiting_.load().num_waiting, 0U);
}

TEST_F(WaitingAnswersTest, WakeWhoeverWaitsForThem) {
  EXPECT_FALSE(waiting_.wait(0ms));
  std::thread connection([this] { waiting_.add(jobs(1)); });
  EXPECT_TRUE(waiting_.wait(30'000ms));
  connection.join();
  EXPECT_TRUE(waiting_.wait(0ms)) << "it waits still";
}

TEST_F(WaitingAnswersTest, FailWhenTheServerStops) {
  waiting_.add(jobs(2));
  Jobs running = take(1);
  waiting_.stop({kUnavailable, "the end"});
  const auto event = channels_[0]->receive(0ms);
  ASSERT_TRUE(event && event->error);
  EXPECT_EQ(event->choice, 1U);
  EXPECT_STREQ(event->error->what(), "the end");
  EXPECT_FALSE(channels_[0]->receive(0ms)) << "who runs an answer ends it";
  EXPECT_EQ(status_of_adding(1), 503);
  EXPECT_EQ(waiting_.load().num_waiting, 0U);
  EXPECT_EQ(waiting_.load().num_active, 0U);
}

TEST_F(WaitingAnswersTest, AJobGivesEachPartOfItsTextOnce) {
  const Jobs one = jobs(1);
  EXPECT_EQ(one[0]->take_text("ab"), "ab");
  EXPECT_EQ(one[0]->take_text("ab"), "");
  EXPECT_EQ(one[0]->take_text("a"), "") << "was sent";
  EXPECT_EQ(one[0]->take_text("abc"), "c");
}

}  // namespace
}  // namespace sftrun::serve
