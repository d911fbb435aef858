#include <gtest/gtest.h>

#include "reward/answers.h"
#include "reward/judge_server.h"
#include "sftrun/core/log.h"
#include "support/expect_error.h"

namespace sftrun::reward {
namespace {

using test::JudgeServer;
using test::RewardRecord;

class RewardModelTest : public ::testing::Test {
 protected:
  RewardModelTest() { log::configure({.console = log::Level::kOff}); }

  static std::unique_ptr<Rewards> judge(const std::string& url, const std::string& settings = "") {
    return std::make_unique<Rewards>(
        test::specs_of("{name: reward_model, label: judge, url: '" + url + "'" +
                       (settings.empty() ? "" : ", " + settings) + "}"),
        Surroundings{.retry_delay_s = 0.05});
  }
  static std::vector<Value> values(Rewards& rewards, std::vector<RewardRecord> records) {
    const test::JudgedAnswers judged(std::move(records));
    return rewards.judge(judged.answers).rewards;
  }
  /// What the server gets, as far as a message quotes it.
  static void expect_request(const RewardRecord& record, std::initializer_list<std::string> parts,
                             const std::string& settings = "") {
    const JudgeServer server("shows");
    const auto rewards = judge(server.url(""), settings);
    test::expect_error<CommError>([&] { values(*rewards, {record}); }, parts);
  }
  template <class E>
  static void expect_refused(const std::string& way, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(way);
    const JudgeServer server(way);
    const auto rewards = judge(server.url(""), "retries: 0");
    test::expect_error<E>([&] { values(*rewards, test::records_of({"a"})); }, parts);
  }
};

const RewardRecord kChat =
    RewardRecord::parse(R"({"prompt": [{"role": "user", "content": "q"}], "generated": "a"})");

TEST_F(RewardModelTest, ScoresEachAnswerWithItsPrompt) {
  const JudgeServer server("length");
  std::vector<RewardRecord> records;
  std::vector<Value> expected;
  for (int i = 0; i < 40; ++i) {
    records.push_back({{"prompt", "p"}, {"generated", std::string(i, 'x')}});
    expected.emplace_back(i + 1 - 10);
  }
  EXPECT_EQ(values(*judge(server.url("")), records), expected) << "in order, below 0, too";
  for (const char* path : {"/", "/v1", "/v1/", "/classify"})
    EXPECT_EQ(values(*judge(server.url(path)), {kChat}), (std::vector<Value>{-8})) << path;
  EXPECT_EQ(values(*judge(server.url(""), "activation: true"), {kChat}), (std::vector<Value>{-4}));
}

TEST_F(RewardModelTest, TextsAndConversationsAreSentAsTheyAre) {
  expect_request({{"prompt", "p "}, {"generated", "a"}},
                 {R"({"input":"p a","use_activation":false,"activation":false})"});
  expect_request({{"text", "once"}, {"generated", " more"}}, {R"({"input":"once more",)"});
  expect_request(kChat,
                 {R"({"model":"rm","messages":[{"role":"user","content":"q"},)",
                  R"({"role":"assistant","content":"a"}],"use_activation":true)"},
                 "model: rm, activation: true");
  expect_request(
      {{"prompt", "q"}, {"generated", "a"}},
      {R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}])"},
      "chat: true");
}

TEST_F(RewardModelTest, AllFormsOfPromptsAreSent) {
  expect_request({{"instruction", "add"}, {"input", "1 2"}, {"output", "x"}, {"generated", "3"}},
                 {R"({"input":"add\n\n1 23",)"});
  expect_request(
      {{"instruction", "add"}, {"system", "s"}, {"generated", "3"}},
      {R"("messages":[{"role":"system","content":"s"},{"role":"user","content":"add"},)"});
  expect_request(
      {{"conversations",
        RewardRecord::parse(
            R"([{"from": "human", "value": "q"}, {"from": "gpt", "value": "old"}])")},
       {"generated", "a"}},
      {R"("messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}])"});
}

/// A run says how it writes prompts that are texts.
TEST_F(RewardModelTest, PromptsAreSentAsTheRunWritesThem) {
  const JudgeServer server("shows");
  for (const auto& [settings, part] :
       {std::pair("", R"("messages":[{"role":"user","content":"q"})"),
        std::pair(", chat: false", R"({"input":"qa")")}) {
    Rewards rewards(
        test::specs_of("{name: reward_model, url: '" + server.url("") + "'" + settings + "}"),
        Surroundings{.has_user_turns = true, .retry_delay_s = 0.05});
    test::expect_error<CommError>(
        [&] {
          values(rewards, {{{"prompt", "q"}, {"generated", "a"}}});
        },
        {part});
  }
}

TEST_F(RewardModelTest, ToolsThatAreTextReachTheServer) {
  expect_request({{"prompt", RewardRecord::parse(R"([{"role": "user", "content": "q"}])")},
                  {"tools", R"([{"type": "function"}])"},
                  {"generated", "a"}},
                 {R"("tools":[{"type":"function"}])"});
}

TEST_F(RewardModelTest, AServerThatIsNotThereIsNamedBeforeTheFirstAnswer) {
  judge(JudgeServer("length").url(""))->rehearse();
  const auto gone = judge("http://127.0.0.1:1", "retries: 0");
  test::expect_error<CommError>([&] { gone->rehearse(); },
                                {"127.0.0.1:1", "check that the server runs"});
}

TEST_F(RewardModelTest, TurnsOfToolsBelongToTheConversation) {
  RewardRecord record = kChat;
  record["turns"] = RewardRecord::parse(
      R"([{"role":"assistant","content":"t"},{"role":"tool","content":"1"},{"role":"assistant","content":"a"}])");
  expect_request(record, {R"("content":"q"},{"role":"assistant","content":"t"},{"role":"tool",)"});
  record["turns"] = 3;  // a column of the data
  expect_request(record, {R"("content":"q"},{"role":"assistant","content":"a"}],"use)"});
}

TEST_F(RewardModelTest, ABusyServerIsAskedAgain) {
  const JudgeServer server("busy 2");
  EXPECT_EQ(values(*judge(server.url(""), "retries: 3"), {kChat, kChat}),
            (std::vector<Value>{-8, -8}));
}

TEST_F(RewardModelTest, WrongAnswersAreNamed) {
  expect_refused<DataError>(
      "text", {"the server of the reward judge answers `fine` to answers.jsonl:1", "\"probs\"",
               "/classify", "sftrun serve"});
  expect_refused<DataError>("classes", {"a model of 3 scores", "objective: reward"});
  expect_refused<DataError>("null", {"the score null, which is not a finite number"});
  expect_refused<CommError>("shows", {"status 422", "asked for answers.jsonl:1"});
}

TEST_F(RewardModelTest, ARecordWithoutAPromptIsRefusedBeforeAnyAnswer) {
  const auto rewards = judge("http://127.0.0.1:9");
  rewards->check_record({{"prompt", "p"}}, "d.jsonl:1");
  rewards->check_record(RewardRecord::parse(R"({"messages": [{"role": "user", "content": "q"}]})"),
                        "d.jsonl:1");
  for (const char* record : {R"({"question": "q"})", R"({"prompt": 3})", R"({"prompt": []})"})
    test::expect_error<DataError>(
        [&] { rewards->check_record(RewardRecord::parse(record), "d.jsonl:2"); },
        {"the reward judge reads the answer with its prompt", "d.jsonl:2"});
}

}  // namespace
}  // namespace sftrun::reward
