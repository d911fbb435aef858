#include "shared_answers.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <mutex>

#include "session.h"
#include "sftrun/core/log.h"
#include "support/test_data.h"
#include "two_ranks.h"

namespace sftrun::engine {
namespace {

/// A rank with its copy of a tiny model.
struct Answering {
  Answering() { model.text.stop_ids.clear(); }

  /// @param batch_size 1: the answers of a rank come in the order in which it took the records
  int run(Rank& rank, const std::string& name, const std::vector<size_t>& records,
          size_t batch_size = 1) {
    return answer_records({.name = name,
                           .rank = rank,
                           .generator = generator,
                           .decoder = *model.decoder,
                           .batch_size = batch_size,
                           .records = records,
                           .prompt = [this](size_t) { return prompt; },
                           .on_answer =
                               [this](size_t record, Answer&& answer) {
                                 order.push_back(record);
                                 answers[record] = std::move(answer);
                                 if (on_answer) on_answer();
                               }});
  }

  LoadedModel model =
      load_model({.model = test::kModels / "tied-gqa"}, {.device = "cpu", .dtype = "fp32"});
  data::PromptTokens prompt = {model.text.tokenizer->encode("Hello", true), {}};
  TextGenerator generator{model.text, {.max_new_tokens = 6, .temperature = 1, .seed = 5}, {}};
  std::map<size_t, Answer> answers;
  std::vector<size_t> order;
  std::function<void()> on_answer;
};

std::map<size_t, std::string> texts_of(const std::map<size_t, Answer>& answers) {
  std::map<size_t, std::string> texts;
  for (const auto& [record, answer] : answers) texts[record] = answer.text;
  return texts;
}

const std::vector<size_t> kRecords = {4, 1, 7, 2, 9};

TEST(SharedAnswers, OfOneRankAreOneForEachRecord) {
  log::configure({.console = log::Level::kOff});
  Answering one, again;
  Rank rank;
  EXPECT_EQ(one.run(rank, "one", kRecords), 0);
  EXPECT_EQ(one.order, kRecords);
  for (const auto& [record, answer] : one.answers) EXPECT_EQ(answer.num_tokens, 6U) << record;
  EXPECT_NE(one.answers[4].text, one.answers[1].text) << "random numbers are the record's own";
  EXPECT_EQ(again.run(rank, "again", {9, 4}, 2), 0);
  EXPECT_EQ(again.answers[4].text, one.answers[4].text) << "and depend on nothing else";
  EXPECT_EQ(again.answers[9].text, one.answers[9].text);
  EXPECT_EQ(again.run(rank, "none", {}), 0);
}

TEST(SharedAnswers, OfTwoRanksAreThoseOfOne) {
  log::configure({.console = log::Level::kOff});
  Answering alone;
  {
    Rank rank;
    alone.run(rank, "alone", kRecords);
  }
  TwoRanks ranks;
  std::array<std::map<size_t, Answer>, 2> own, all;
  const int code = ranks.run([&](Rank& of_thread) {
    const auto index = static_cast<size_t>(of_thread.env().rank);
    Answering part;
    const int stop = part.run(of_thread, "together", kRecords);
    own[index] = part.answers;
    all[index] = answers_of_all_ranks(of_thread.comm(), part.answers);
    return stop;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(own[0].size() + own[1].size(), kRecords.size()) << "each is answered once";
  for (const auto& found : all) EXPECT_EQ(texts_of(found), texts_of(alone.answers));
  for (const auto& [record, answer] : all[1]) {
    EXPECT_EQ(answer.num_tokens, 6U) << record;
    EXPECT_FALSE(answer.stopped);
  }
}

TEST(SharedAnswers, AStopEndsThemWithItsCode) {
  log::configure({.console = log::Level::kOff});
  Answering stopped;
  Rank rank;
  stopped.on_answer = [] { ::raise(SIGTERM); };
  const int code = stopped.run(rank, "stopped", kRecords);
  EXPECT_EQ(code, launch::exit_code_of_stop_signal(SIGTERM));
  EXPECT_EQ(stopped.order, std::vector<size_t>{4}) << "the next one was not begun";
}

}  // namespace
}  // namespace sftrun::engine
