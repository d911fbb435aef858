#include "sftrun/serve/scheduler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <thread>

#include "sftrun/core/log.h"
#include "sftrun/model/generation_batch.h"
#include "support/served_tiny.h"

namespace sftrun::serve {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kDeadline = std::chrono::seconds(30);

/// What has come through a channel.
struct SeenAnswers {
  explicit SeenAnswers(std::shared_ptr<AnswerChannel> from) : channel(std::move(from)) {}

  /// Takes what is there.   @return whether a first token of any answer has come
  bool look(std::chrono::milliseconds most = {}) {
    while (auto event = channel->receive(most)) {
      if (event->error) {
        errors.push_back(event->error->status());
        break;
      }
      texts[event->choice] += event->text;
      if (!event->tokens.empty()) first_tokens.try_emplace(event->choice, event->tokens[0].token);
      num_tokens[event->choice] += event->tokens.size();
      if (!event->finish_reason.empty()) finish[event->choice] = event->finish_reason;
      most = {};
    }
    return !num_tokens.empty();
  }
  bool is_finished(size_t num_answers = 1) {
    look();
    return finish.size() == num_answers;
  }
  size_t total_tokens() const {
    size_t total = 0;
    for (const auto& [choice, count] : num_tokens) total += count;
    return total;
  }

  std::shared_ptr<AnswerChannel> channel;
  std::map<size_t, std::string> texts, finish;
  std::map<size_t, size_t> num_tokens;
  std::map<size_t, int32_t> first_tokens;
  std::vector<int> errors;
};

/// The later one has not begun before the earlier one has ended.
void expect_order(SeenAnswers& earlier, SeenAnswers& later) {
  EXPECT_TRUE(!later.look() || earlier.is_finished());
}

int status_of_call(const std::function<void()>& request) {
  try {
    request();
  } catch (const ApiError& error) {
    return error.status();
  }
  return 200;
}

/// Answers end after `max_tokens`, because no token stops them. Without a test's own thread the
/// scheduler runs on the test's, and `should_stop` looks at what happens between two steps.
class SchedulerTest : public ::testing::Test {
 protected:
  SchedulerTest() {
    log::configure({.console = log::Level::kOff});
    model().text.stop_ids.clear();
  }

  ServedModel& model() { return *tiny_.models.front(); }
  uint64_t bytes_of_token() {
    return model::GenerationBatch(model().decoder, 1, {}).bytes_of_sequence(1);
  }
  void make(const Limits& limits) { scheduler_.emplace(tiny_.models, limits); }
  SeenAnswers ask(Json body, const ServedModel& of) {
    body["temperature"] = body.value("temperature", 0.0);
    return SeenAnswers(scheduler_->submit(of, parse_completion(body, of)));
  }
  SeenAnswers ask(const Json& body) { return ask(body, model()); }
  SeenAnswers ask(int64_t max_tokens) {
    return ask(Json{{"prompt", "a"}, {"max_tokens", max_tokens}});
  }
  void run_until(const std::function<bool()>& done) {
    const auto deadline = Clock::now() + kDeadline;
    bool is_done = false;
    scheduler_->run([&] {
      is_done = is_done || done();
      return is_done || Clock::now() > deadline;
    });
    EXPECT_TRUE(is_done) << "the deadline has passed";
  }

  ServedTiny tiny_;
  std::optional<Scheduler> scheduler_;
};

const Limits kAmple{.batch_size = 4, .max_waiting = 16, .cache_bytes = 1 << 20};

TEST_F(SchedulerTest, AnswersAllOfARequestAsEachAlone) {
  std::vector<std::string> alone;
  for (const char* prompt : {"Hello", "the"}) {
    make(kAmple);
    SeenAnswers one = ask(Json{{"prompt", prompt}, {"max_tokens", 9}});
    run_until([&] { return one.is_finished(); });
    alone.push_back(one.texts[0]);
  }
  make(kAmple);
  SeenAnswers all =
      ask(Json{{"prompt", Json::array({"Hello", "the"})}, {"n", 2}, {"max_tokens", 9}});
  run_until([&] { return all.is_finished(4); });
  EXPECT_NE(alone[0], alone[1]);
  for (const size_t choice : {0, 1, 2, 3}) {
    EXPECT_EQ(all.texts[choice], alone[choice / 2]) << "prompt p has the choices 2 p and 2 p + 1";
    EXPECT_EQ(all.num_tokens[choice], 9U);
    EXPECT_EQ(all.finish[choice], "length");
  }
  EXPECT_EQ(scheduler_->load().num_tokens, 36U);
}

TEST_F(SchedulerTest, SampledChoicesOfAPromptDiffer) {
  make(kAmple);
  SeenAnswers sampled =
      ask(Json{{"prompt", "a"}, {"n", 2}, {"max_tokens", 12}, {"temperature", 1.5}, {"seed", 3}});
  run_until([&] { return sampled.is_finished(2); });
  EXPECT_NE(sampled.texts[0], sampled.texts[1]);
}

TEST_F(SchedulerTest, AnAnswerEndsAtATokenOrATextThatStopsIt) {
  make(kAmple);
  SeenAnswers whole = ask(9);
  run_until([&] { return whole.is_finished(); });
  const std::string text = whole.texts[0];
  const int32_t first_token = whole.first_tokens[0];
  ASSERT_GT(text.size(), 3U);
  const std::string stop = text.substr(text.size() / 2, 1);
  make(kAmple);
  SeenAnswers stopped = ask(Json{{"prompt", "a"}, {"max_tokens", 9}, {"stop", stop}});
  run_until([&] { return stopped.is_finished(); });
  EXPECT_EQ(stopped.texts[0], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped.finish[0], "stop");

  model().text.stop_ids = {first_token};
  make(kAmple);
  SeenAnswers empty = ask(9);
  run_until([&] { return empty.is_finished(); });
  EXPECT_EQ(empty.texts[0], "");
  EXPECT_EQ(empty.finish[0], "stop");
  EXPECT_EQ(empty.total_tokens(), 1U) << "the stop token is reported";
}

TEST_F(SchedulerTest, ScoresOfThePromptComeFirst) {
  make(kAmple);
  const auto channel =
      ask(Json{{"prompt", "Hello you"}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 2}})
          .channel;
  std::vector<AnswerEvent> events;
  run_until([&] {
    while (auto event = channel->receive({})) events.push_back(std::move(*event));
    return !events.empty() && !events.back().finish_reason.empty();
  });
  const size_t num_prompt = parse_completion({{"prompt", "Hello you"}}, model()).prompts[0].size();
  ASSERT_GE(num_prompt, 2U);
  EXPECT_EQ(events.at(0).prompt_scores.size(), num_prompt - 1);
  EXPECT_TRUE(events.at(0).tokens.empty());
  EXPECT_TRUE(events.at(1).prompt_scores.empty());
  ASSERT_EQ(events.at(1).tokens.size(), 1U);
  EXPECT_TRUE(events.at(1).tokens[0].logprobs.has_value());
}

TEST_F(SchedulerTest, StartsAnswersInTheOrderOfArrival) {
  make({.batch_size = 1, .max_waiting = 3, .cache_bytes = 1 << 20});
  std::vector<SeenAnswers> asked;
  for (const int64_t length : {7, 2, 5, 3}) asked.push_back(ask(length));
  EXPECT_EQ(scheduler_->load().num_waiting, 4U);
  size_t most_active = 0;
  run_until([&] {
    most_active = std::max(most_active, scheduler_->load().num_active);
    for (size_t i = 0; i + 1 < asked.size(); ++i) expect_order(asked[i], asked[i + 1]);
    return asked.back().is_finished();
  });
  EXPECT_LE(most_active, 1U);
  for (size_t i = 0; i < asked.size(); ++i)
    EXPECT_EQ(asked[i].total_tokens(), (std::vector<size_t>{7, 2, 5, 3})[i]);
}

TEST_F(SchedulerTest, ALongAnswerIsNotPassedByThoseBehindIt) {
  const size_t prompt = parse_completion({{"prompt", "a"}}, model()).prompts[0].size();
  const uint64_t tokens = 40 + prompt;  // of the long answer alone, or of two short ones
  make({.batch_size = 4, .max_waiting = 4, .cache_bytes = tokens * bytes_of_token()});
  SeenAnswers first = ask(10), large = ask(40), small = ask(10);
  run_until([&] {
    expect_order(first, large);  // both do not fit
    expect_order(large, small);  // it has come later
    return small.is_finished();
  });
  make({.batch_size = 4, .max_waiting = 4, .cache_bytes = tokens * bytes_of_token()});
  SeenAnswers one = ask(10), other = ask(10);
  run_until([&] {
    EXPECT_EQ(one.look(), other.look()) << "two small ones run together";
    return other.is_finished();
  });
}

TEST_F(SchedulerTest, ModelsShareTheMemoryOfTheCaches) {
  tiny_.models.push_back(
      std::make_unique<ServedModel>("other", model().text, *tiny_.decoder, model().max_length));
  const size_t prompt = parse_completion({{"prompt", "a"}}, model()).prompts[0].size();
  make({.batch_size = 4, .max_waiting = 4, .cache_bytes = (10 + prompt) * bytes_of_token()});
  const Json body = {{"prompt", "a"}, {"max_tokens", 10}};
  SeenAnswers first = ask(body, *tiny_.models[0]), second = ask(body, *tiny_.models[1]);
  run_until([&] {
    expect_order(first, second);
    return second.is_finished();
  });
  EXPECT_EQ(first.texts[0], second.texts[0]);
}

TEST_F(SchedulerTest, AnAnswerThatNeverFitsIsRefusedAtOnce) {
  const size_t prompt = parse_completion({{"prompt", "a"}}, model()).prompts[0].size();
  make({.batch_size = 4, .max_waiting = 4, .cache_bytes = (10 + prompt) * bytes_of_token()});
  try {
    ask(11);
    ADD_FAILURE() << "it was accepted";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(error.param(), "max_tokens");
    EXPECT_EQ(error.to_json()["error"]["code"], "context_length_exceeded");
  }
  EXPECT_EQ(scheduler_->load().num_waiting, 0U);
  SeenAnswers fitting = ask(10);
  run_until([&] { return fitting.is_finished(); });
}

TEST_F(SchedulerTest, TooManyAnswersAreRefusedUntilOthersEnd) {
  make({.batch_size = 1, .max_waiting = 1, .cache_bytes = 1 << 20});
  SeenAnswers first = ask(2), second = ask(60);
  EXPECT_EQ(status_of_call([&] { ask(1); }), 429);
  EXPECT_EQ(status_of_call([&] {
              ask(Json{{"prompt", "a"}, {"n", 3}, {"max_tokens", 1}});
            }),
            400)
      << "never possible";
  std::optional<SeenAnswers> third;
  run_until([&] {
    // An answer in progress counts until a step has ended it.
    if (!third && first.is_finished() && scheduler_->load().num_active == 1 &&
        scheduler_->load().num_waiting == 0)
      third = ask(3);
    return third && third->is_finished();
  });
  EXPECT_TRUE(second.is_finished());
}

TEST_F(SchedulerTest, ACancelledAnswerGivesItsRowToTheNext) {
  make({.batch_size = 1, .max_waiting = 2, .cache_bytes = 1 << 20});
  SeenAnswers left = ask(100), given_up = ask(100), next = ask(3);
  given_up.channel->cancel();
  run_until([&] {
    if (left.look()) left.channel->cancel();
    return next.is_finished();
  });
  EXPECT_LT(left.total_tokens(), 100U);
  EXPECT_TRUE(left.finish.empty());
  EXPECT_FALSE(given_up.look()) << "it was cancelled while it waited";
  EXPECT_TRUE(left.errors.empty() && given_up.errors.empty());
}

TEST_F(SchedulerTest, AnswersThatRunOrWaitFailWhenItStops) {
  make({.batch_size = 1, .max_waiting = 2, .cache_bytes = 1 << 20});
  SeenAnswers runs = ask(100), waits = ask(5);
  run_until([&] { return runs.look(); });
  runs.look();
  waits.look();
  EXPECT_EQ(runs.errors, std::vector<int>{503});
  EXPECT_EQ(waits.errors, std::vector<int>{503});
  EXPECT_EQ(waits.total_tokens(), 0U);
  EXPECT_EQ(status_of_call([&] { ask(1); }), 503);
  EXPECT_EQ(scheduler_->load().num_active + scheduler_->load().num_waiting, 0U);
}

/// As when a rank is lost: the error ends the process, and clients have their answers before.
TEST_F(SchedulerTest, AnswersFailBeforeAnErrorEndsIt) {
  make({.batch_size = 1, .max_waiting = 2, .cache_bytes = 1 << 20});
  SeenAnswers runs = ask(100), waits = ask(5);
  EXPECT_THROW(scheduler_->run([&]() -> bool {
    if (runs.look()) throw std::runtime_error("connection closed by peer");
    return false;
  }),
               std::runtime_error);
  runs.look();
  waits.look();
  EXPECT_EQ(runs.errors, std::vector<int>{503});
  EXPECT_EQ(waits.errors, std::vector<int>{503});
}

TEST_F(SchedulerTest, AFailureEndsTheAnswersOfItsModelAlone) {
  ServedTiny sound;
  tiny_.models.push_back(
      std::make_unique<ServedModel>("sound", model().text, *sound.decoder, model().max_length));
  at::Tensor& weight = tiny_.decoder->embedding().weight;
  const at::Tensor good = weight;
  make({.batch_size = 1, .max_waiting = 4, .cache_bytes = 1 << 20});
  const Json body = {{"prompt", "a"}, {"max_tokens", 20}};
  SeenAnswers broken = ask(body), other = ask(body, *tiny_.models[1]), next = ask(body);
  run_until([&] {
    if (broken.look() && broken.errors.empty()) weight = at::full_like(good, NAN);
    if (!broken.errors.empty()) weight = good;
    return next.is_finished() && other.is_finished();
  });
  EXPECT_EQ(broken.errors, std::vector<int>{500});
  EXPECT_EQ(other.texts[0], next.texts[0]) << "as if nothing had happened";
  EXPECT_TRUE(next.texts[0].starts_with(broken.texts[0]));
  EXPECT_EQ(next.errors, std::vector<int>());
}

TEST_F(SchedulerTest, ARequestWakesASchedulerThatRests) {
  make(kAmple);
  std::atomic<bool> stops{false};
  std::atomic<int> num_looks{0};
  std::thread thread([&] {
    scheduler_->run([&] {
      ++num_looks;
      return stops.load();
    });
  });
  const auto deadline = Clock::now() + kDeadline;
  for (const int looks : {3, 6}) {  // the second look is already within a rest
    while (num_looks < looks && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    SeenAnswers seen = ask(4);
    while (!seen.is_finished() && Clock::now() < deadline) seen.look(std::chrono::milliseconds(20));
    EXPECT_EQ(seen.total_tokens(), 4U);
  }
  stops = true;
  thread.join();
}

TEST_F(SchedulerTest, StopsAtOnceWhenItRestsOrHasNotBegun) {
  make(kAmple);
  SeenAnswers waits = ask(4);
  scheduler_->run([] { return true; });
  EXPECT_FALSE(waits.look());
  EXPECT_EQ(waits.errors, std::vector<int>{503});
  make(kAmple);
  int num_looks = 0;
  run_until([&] { return ++num_looks > 2; });
  EXPECT_EQ(scheduler_->load().num_tokens, 0U);
}

}  // namespace
}  // namespace sftrun::serve
