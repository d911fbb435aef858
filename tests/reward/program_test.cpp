#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "reward/answers.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/reward/outside_program.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::reward {
namespace {

namespace fs = std::filesystem;

class ProgramRewardTest : public ::testing::Test {
 protected:
  ProgramRewardTest() { log::configure({.console = log::Level::kOff}); }

  /// @param way of tests/reward/programs/judge.py   @param settings "timeout: 1, restarts: 0"
  std::unique_ptr<Rewards> judge(const std::string& way, const std::string& settings = "") const {
    return command("exec python3 " SFTRUN_REWARD_PROGRAMS "/judge.py " + way, settings);
  }
  std::unique_ptr<Rewards> command(const std::string& command, const std::string& settings) const {
    return std::make_unique<Rewards>(
        test::specs_of("{name: program, label: judge, command: '" + command + "'" +
                       (settings.empty() ? "" : ", " + settings) + "}"),
        Surroundings{.should_stop = should_stop_, .guard = SFTRUN_TEST_WORKER});
  }
  std::string folder() const { return directory_.path().string(); }
  ptrdiff_t num_starts() const {
    ptrdiff_t count = 0;
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      count += entry.path().filename().string().starts_with("start-") ? 1 : 0;
    return count;
  }

  static std::vector<Value> values(Rewards& rewards, const std::vector<std::string>& texts) {
    const test::JudgedAnswers judged(test::records_of(texts));
    return rewards.judge(judged.answers).rewards;
  }

  test::TemporaryDirectory directory_;
  std::function<bool()> should_stop_;
};

TEST_F(ProgramRewardTest, OneProcessAnswersAllBatches) {
  const auto rewards =
      command("exec python3 " SFTRUN_REWARD_PROGRAMS "/judge.py dies 1000 " + folder(), "");
  EXPECT_EQ(values(*rewards, {"a", "bc"}), (std::vector<Value>{1, 2}));
  EXPECT_EQ(values(*rewards, {"abc\n\"\xC3\xA4"}), (std::vector<Value>{6}));
  EXPECT_EQ(values(*rewards, {}), (std::vector<Value>{}));
  std::vector<std::string> many;
  std::vector<Value> lengths;
  for (size_t i = 0; i < 900; ++i) {
    many.emplace_back(i, 'x');
    lengths.emplace_back(i);
  }
  EXPECT_EQ(values(*rewards, many), lengths);
  rewards->finish();
  EXPECT_EQ(num_starts(), 1);
}

TEST_F(ProgramRewardTest, NumbersHaveTheFormsThatProgramsPrint) {
  EXPECT_EQ(values(*judge("reward"), {"abc", ""}), (std::vector<Value>{3, std::nullopt}));
  EXPECT_EQ(
      values(*command("exec " SFTRUN_REWARD_PROGRAMS "/judge.sh", ""), {"hello", "hello hello"}),
      (std::vector<Value>{0.5, 1.1}));
  EXPECT_EQ(values(*judge("lies 1e-05"), {"lie"}), (std::vector<Value>{1e-5}));
  EXPECT_EQ(values(*judge("lies \" -2.5 \""), {"lie"}), (std::vector<Value>{-2.5}));
}

TEST_F(ProgramRewardTest, LargeRecordsAndErrorsDoNotBlockPipes) {
  const std::string large(1 << 21, 'x');
  EXPECT_EQ(values(*judge("noisy"), {large, "a", large}),
            (std::vector<Value>{1 << 21, 1, 1 << 21}));
}

TEST_F(ProgramRewardTest, OneThatDiesIsStartedAgain) {
  EXPECT_EQ(values(*judge("once " + folder()), {"a", "bc", "abc"}), (std::vector<Value>{1, 2, 3}));
  EXPECT_EQ(num_starts(), 2);
}

TEST_F(ProgramRewardTest, OneThatKeepsDyingIsNamed) {
  const auto rewards = judge("dies 2 " + folder(), "restarts: 2");
  test::expect_error<DeviceError>(
      [&] {
        values(*rewards, {"a", "bc", "abc"});
      },
      {"the program of the reward judge ended with exit code 3 after 1 of 3 answers",
       "(the last of 3 attempts)", "\n    Traceback: no such judge", "judge.py dies 2",
       "(rewards.yaml:1:"});
  EXPECT_EQ(num_starts(), 3);
  test::expect_error<DeviceError>(
      [&] { values(*command("true && no-such-program", "restarts: 0"), {"a"}); },
      {"ended with exit code 127 after 0 of 1 answers", "not found", "no-such-program"});
  test::expect_error<DeviceError>(
      [&] { values(*command("kill -SEGV $$", "restarts: 0"), {"a"}); },
      {"was killed by signal 11 after 0 of 1 answers", "nothing to its standard error"});
  test::expect_error<DeviceError>(
      [&] {
        values(*command("head -n 1 >/dev/null; echo 1", "restarts: 0"), {"a", "b"});
      },
      {"ended with exit code 0 after 1 of 2 answers"});
}

TEST(RequirePrograms, OfTheRewardsAndTheEnvironment) {
  config::TrainConfig train;
  config::RolloutsConfig& rollouts = train.rollouts;
  train.objective = config::Objective::kGrpo;
  rollouts.reward = test::specs_of("{name: length, target: 9}");
  require_programs(train);
  rollouts.environment = "./no-such-tools.py";
  test::expect_error<ConfigError>([&] { require_programs(train); },
                                  {"the program of the environment cannot run: "
                                   "./no-such-tools.py does not exist",
                                   "(train.rollouts.environment)"});
  rollouts.environment = "cat";
  rollouts.reward = test::specs_of("{name: program, command: no-such-judge}");
  test::expect_error<ConfigError>([&] { require_programs(train); },
                                  {"there is no no-such-judge", "(rewards.yaml:1:"});
  train.objective = config::Objective::kSft;  // which writes no answers
  require_programs(train);
}

TEST(RequirePrograms, OfCallbacks) {
  config::CallbacksConfig callbacks;
  require_program(callbacks);
  callbacks.command = "./no-such-notify.sh \"$SFTRUN_EVENT\"";
  test::expect_error<ConfigError>(
      [&] { require_program(callbacks); },
      {"callbacks.command cannot run: ./no-such-notify.sh does not exist", "(callbacks.command)"});
  callbacks.events.clear();
  require_program(callbacks);  // it is never run
  callbacks = {.command = "cat > /dev/null"};
  require_program(callbacks);
}

/// Before the first answer.
TEST_F(ProgramRewardTest, OneThatIsMissingIsRefusedAtOnce) {
  test::expect_error<ConfigError>(
      [&] { command("no-such-program", "restarts: 0"); },
      {"the program of the reward judge cannot run: there is no no-such-program", "PATH",
       "no-such-program (rewards.yaml:1:"});
  const std::string file = folder() + "/judge.py", missing = folder() + "/nowhere.py";
  std::ofstream(file) << "#!/bin/sh\ncat\n";
  EXPECT_NE(missing_program(missing + " --fast").find("does not exist"), std::string::npos);
  EXPECT_NE(missing_program(file).find("may not be executed"), std::string::npos);
  EXPECT_NE(missing_program(folder()).find("is a directory"), std::string::npos);
  EXPECT_NE(missing_program("python3 " + missing + " x").find("does not exist"), std::string::npos);
  EXPECT_NE(missing_program("exec /bin/sh " + missing).find("does not exist"), std::string::npos);
  std::filesystem::permissions(file, std::filesystem::perms::owner_exec,
                               std::filesystem::perm_options::add);
  for (const std::string& fine :
       {file + " -v", "sh " + file, std::string("cat"), std::string("  exec cat"),
        std::string("while read -r line; do echo 1; done"), std::string("n=0; echo $n"),
        std::string("\"$JUDGE\" --fast"), std::string("python3 -m judge"),
        std::string("read -r line; echo 1"), std::string("[ -e a ] || no-such-program"),
        std::string("(no-such-program)"),
        std::string("no-such-program() { cat; }; no-such-program"),
        std::string("~/no-such-program"), std::string("A=b no-such-program"),
        std::string("cat\nno-such-program")})
    EXPECT_EQ(missing_program(fine), "") << fine;
}

TEST_F(ProgramRewardTest, OneThatEndsAfterItsAnswersIsStartedForTheNextBatch) {
  const auto rewards =
      command("read -r line; touch \"" + folder() + "/start-$$\"; printf 2", "restarts: 0");
  EXPECT_EQ(values(*rewards, {"a"}), (std::vector<Value>{2})) << "without a line end";
  EXPECT_EQ(values(*rewards, {"a"}), (std::vector<Value>{2}));
  EXPECT_EQ(num_starts(), 2);
}

TEST_F(ProgramRewardTest, OneThatIsJustEndingCostsNoRestart) {
  // Its input is open until it ends, half a second after its answer: the next batch goes there.
  const auto rewards = command(
      "read -r line; touch \"" + folder() + "/start-$$\"; echo 2; sleep 0.5", "restarts: 0");
  for (int batch = 0; batch < 3; ++batch)
    EXPECT_EQ(values(*rewards, {"a"}), (std::vector<Value>{2})) << batch;
  EXPECT_EQ(num_starts(), 3);
  const auto fails = command("read -r line; echo 2; sleep 0.5; exit 3", "restarts: 0");
  EXPECT_EQ(values(*fails, {"a"}), (std::vector<Value>{2}));
  test::expect_error<DeviceError>([&] { values(*fails, {"a"}); },
                                  {"ended with exit code 3 after 0 of 1 answers"});
}

bool runs(pid_t pid) {
  return ::kill(pid, 0) == 0;
}

TEST_F(ProgramRewardTest, OneThatHangsIsKilledWithItsChildren) {
  const auto rewards = judge("hangs " + folder(), "timeout: 1.5, restarts: 0");
  const double begun_s = monotonic_seconds();
  test::expect_error<DeviceError>(
      [&] {
        values(*rewards, {"a", "bc"});
      },
      {"gave 1 of 2 answers within 1.5 s, and was killed", "flush standard output"});
  EXPECT_LT(monotonic_seconds() - begun_s, 15);
  pid_t program = 0, child = 0;
  std::istringstream(read_text_file(directory_ / "pids")) >> program >> child;
  ASSERT_GT(child, 0);
  EXPECT_FALSE(runs(program));
  EXPECT_FALSE(runs(child)) << "in a session of its own";
}

TEST_F(ProgramRewardTest, WhatItLeavesIsKilledWhenItEnds) {
  const std::string leave =
      "sleep 1000 & one=$!; setsid sleep 1000 & echo $one $! > \"" + folder() + "/pids\"; ";
  const auto expect_none = [&](const std::string& when) {
    pid_t one = 0, other = 0;
    std::istringstream(read_text_file(directory_ / "pids")) >> one >> other;
    ASSERT_GT(other, 0) << when;
    EXPECT_FALSE(runs(one)) << when;
    EXPECT_FALSE(runs(other)) << "in a session of its own, " << when;
  };
  const auto ends = command(leave + "while read -r line; do echo 1; done", "restarts: 0");
  EXPECT_EQ(values(*ends, {"a"}), (std::vector<Value>{1}));
  ends->finish();
  expect_none("at the end");
  test::expect_error<DeviceError>(
      [&] { values(*command(leave + "read -r line; exit 3", "restarts: 0"), {"a"}); },
      {"ended with exit code 3"});
  expect_none("when it has died");
}

TEST_F(ProgramRewardTest, OneThatClosesItsStreamsIsLate) {
  test::expect_error<DeviceError>([&] { values(*judge("deaf", "timeout: 1, restarts: 1"), {"a"}); },
                                  {"gave 0 of 1 answers within 1 s", "(the last of 2 attempts)"});
}

TEST_F(ProgramRewardTest, SlowAnswersOfOneBatchShareTheTime) {
  EXPECT_EQ(values(*judge("slow 0.05", "timeout: 20"), {"a", "b", "c"}),
            (std::vector<Value>{1, 1, 1}));
}

TEST_F(ProgramRewardTest, LiesAreNamedWithTheirRecord) {
  for (const std::string lie :
       {"nan", "inf", "1e999", "good", "[1]", "{}", "1 2", "0x10", "True", "{\"reward\": \"a\"}"}) {
    const auto rewards = judge(
        "lies \"" + (lie[0] == '{' && lie.size() > 2 ? "{\\\"reward\\\": \\\"a\\\"}" : lie) + "\"");
    test::expect_error<DataError>(
        [&] {
          values(*rewards, {"a", "lie"});
        },
        {"the program of the reward judge answers answers.jsonl:2 with", "judge.py lies"});
  }
  test::expect_error<DataError>(
      [&] {
        values(*judge("chatty"), {"a", "b"});
      },
      {"the program of the reward judge"});
}

TEST_F(ProgramRewardTest, AnAnswerTooManyIsFoundAtTheNextBatchOrTheEnd) {
  const auto at_end = judge("late");
  EXPECT_EQ(values(*at_end, {"last"}), (std::vector<Value>{4}));
  test::expect_error<DataError>([&] { at_end->finish(); },
                                {"wrote more than one line for each record: `one more`"});
  const auto at_next = judge("late");
  EXPECT_EQ(values(*at_next, {"last"}), (std::vector<Value>{4}));
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  test::expect_error<DataError>([&] { values(*at_next, {"a"}); }, {"`one more`"});
}

TEST_F(ProgramRewardTest, ACommandIsNotEmpty) {
  test::expect_error<ConfigError>([&] { command(" ", ""); },
                                  {"`command` of the reward judge is empty", "rewards.yaml:1:"});
  test::expect_error<ConfigError>([&] { command("cat", "timeout: 1e300"); },
                                  {"`timeout`", "takes a number above 0 up to 1000000"});
}

TEST_F(ProgramRewardTest, AStopEndsTheWait) {
  std::atomic<int> asked = 0;
  should_stop_ = [&asked] { return ++asked > 5; };
  const double begun_s = monotonic_seconds();
  const auto rewards = judge("slow 100", "timeout: 60");
  test::expect_error<Error>([&] { values(*rewards, {"a"}); }, {"told to stop"});
  EXPECT_LT(monotonic_seconds() - begun_s, 20);
}

TEST_F(ProgramRewardTest, ItIsNoRankAndHasUnbufferedOutput) {
  ::setenv("RANK", "3", 1);
  const auto rewards = command(
      "while read -r line; do if [ -z \"$RANK\" ] && [ \"$PYTHONUNBUFFERED\" = 1 ]; then echo 1; "
      "else echo 0; fi; done",
      "");
  EXPECT_EQ(values(*rewards, {"a"}), (std::vector<Value>{1}));
  ::unsetenv("RANK");
}

}  // namespace
}  // namespace sftrun::reward
