#include "sftrun/launch/event_commands.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "sftrun/core/clock.h"
#include "sftrun/core/file.h"
#include "support/temporary_directory.h"

namespace sftrun::launch {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

class EventCommandsTest : public ::testing::Test {
 protected:
  EventCommandOptions options(const std::string& command) const {
    return {.command = command,
            .events = {"checkpoint", "end"},
            .timeout_s = 20,
            .run_dir = directory_.path(),
            .guard = SFTRUN_TEST_WORKER};
  }
  std::string text_of(const std::string& name) const {
    const fs::path file = directory_ / name;
    return fs::exists(file) ? read_text_file(file) : "";
  }

  test::TemporaryDirectory directory_;
};

TEST_F(EventCommandsTest, TheCommandReadsTheEvent) {
  {
    EventCommands commands(options(
        "cat > \"$SFTRUN_RUN_DIR/event.json\"; echo \"$SFTRUN_EVENT $SFTRUN_STEP\"; echo no >&2"));
    commands.tell({.name = "checkpoint", .step = 7, .details = {{"checkpoint", "a \"b\"\n"}}});
  }
  EXPECT_EQ(Json::parse(text_of("event.json")),
            (Json{{"event", "checkpoint"},
                  {"step", 7},
                  {"run_dir", fs::absolute(directory_.path()).string()},
                  {"checkpoint", "a \"b\"\n"}}));
  EXPECT_EQ(text_of("logs/callbacks.log"), "checkpoint 7\nno\n");
}

TEST_F(EventCommandsTest, OnlyTheEventsThatWereAskedFor) {
  {
    EventCommands commands(options("echo \"$SFTRUN_EVENT\""));
    for (const char* name : {"evaluation", "checkpoint", "failure", "end"})
      commands.tell({.name = name});
  }
  EXPECT_EQ(text_of("logs/callbacks.log"), "checkpoint\nend\n");
}

TEST_F(EventCommandsTest, NobodyWaitsForASlowCommand) {
  EventCommandOptions slow = options("sleep 600 & sleep 600; echo late");
  slow.timeout_s = 0.3;
  const double start_s = monotonic_seconds();
  EventCommands commands(slow);
  commands.tell({.name = "end"});
  EXPECT_LT(monotonic_seconds() - start_s, 0.3);  // it was only queued
  commands.finish();
  EXPECT_EQ(text_of("logs/callbacks.log"), "");  // ended, with what it had started
}

/// The processes in a file of ids that still run.
std::vector<pid_t> running_of(const fs::path& file) {
  std::vector<pid_t> running;
  std::ifstream ids(file);
  for (pid_t pid; ids >> pid;) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(stat, text);
    const size_t name_end = text.rfind(") ");
    if (name_end != std::string::npos && text[name_end + 2] != 'Z') running.push_back(pid);
  }
  return running;
}

template <class Condition>
bool comes_true(Condition condition) {
  for (const double end_s = monotonic_seconds() + 10; monotonic_seconds() < end_s;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

/// A command, a process in its background, one in a session of its own, and a daemon: its parent has
/// ended. All ignore SIGTERM.
constexpr const char* kFamily =
    "trap '' TERM HUP INT; ids=\"$SFTRUN_RUN_DIR/ids\"; echo $$ > \"$ids\"; "
    "sleep 600 & echo $! >> \"$ids\"; "
    "setsid sh -c 'echo $$ >> \"$0\"; exec sleep 600' \"$ids\" & "
    "(setsid sh -c 'echo $$ >> \"$0\"; exec sleep 600' \"$ids\" &); wait";
constexpr size_t kFamilySize = 4;

TEST_F(EventCommandsTest, ACommandEndsWithItsDaemons) {
  const fs::path ids = directory_ / "ids";
  std::atomic<bool> is_urgent{false};
  EventCommandOptions family = options(kFamily);
  family.should_end = [&] { return is_urgent.load(); };
  EventCommands commands(family);
  commands.tell({.name = "end"});
  EXPECT_TRUE(comes_true([&] { return running_of(ids).size() == kFamilySize; }));
  is_urgent = true;
  commands.finish();
  EXPECT_EQ(running_of(ids), std::vector<pid_t>());
}

TEST_F(EventCommandsTest, ACommandIsKilledWhenItsGuardIs) {
  const fs::path ids = directory_ / "ids";
  EventCommands commands(
      options("cd \"$SFTRUN_RUN_DIR\"; trap '' TERM; echo $PPID > guard; sleep 600 & "
              "echo $$ $! > ids; wait"));
  commands.tell({.name = "end"});
  ASSERT_TRUE(comes_true([&] { return running_of(ids).size() == 2; }));
  ::kill(running_of(directory_ / "guard").at(0), SIGKILL);
  commands.finish();
  EXPECT_TRUE(comes_true([&] { return running_of(ids).empty(); }));
}

TEST_F(EventCommandsTest, ChildrenOfALateCommandHaveTimeToEnd) {
  EventCommandOptions late =
      options("(trap 'echo told; sleep 0.5; echo tidied; exit' TERM; sleep 600 & wait) & wait");
  late.timeout_s = 0.5;
  const double start_s = monotonic_seconds();
  EventCommands commands(late);
  commands.tell({.name = "end"});
  commands.finish();
  EXPECT_EQ(text_of("logs/callbacks.log"), "told\ntidied\n") << "once";
  EXPECT_LT(monotonic_seconds() - start_s, 2.4) << "no longer than they take";
}

TEST_F(EventCommandsTest, WhatACommandLeftInTheBackgroundGoesOn) {
  const fs::path ids = directory_ / "ids";
  {
    EventCommands commands(options("sleep 600 & echo $! > \"$SFTRUN_RUN_DIR/ids\""));
    commands.tell({.name = "end"});
  }
  const std::vector<pid_t> left = running_of(ids);
  ASSERT_EQ(left.size(), 1);
  ::kill(left[0], SIGKILL);
}

TEST_F(EventCommandsTest, ACommandThatFailsOrCannotBeWrittenDoesNothing) {
  {
    EventCommands commands(options("echo before; exit 3"));
    commands.tell({.name = "checkpoint"});
    commands.tell({.name = "checkpoint"});
  }
  EXPECT_EQ(text_of("logs/callbacks.log"), "before\nbefore\n");
  EventCommandOptions nowhere = options("true");
  nowhere.run_dir = "/dev/null/run";
  EventCommands commands(nowhere);
  commands.tell({.name = "end"});
  EXPECT_NO_THROW(commands.finish());
}

TEST_F(EventCommandsTest, NothingOutlivesAKilledProcess) {
  const fs::path ids = directory_ / "ids";
  const pid_t pid = ::fork();
  if (pid == 0) {
    EventCommands commands(options(kFamily));
    commands.tell({.name = "end"});
    for (;;) ::pause();
  }
  EXPECT_TRUE(comes_true([&] { return running_of(ids).size() == kFamilySize; }));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  EXPECT_TRUE(comes_true([&] { return running_of(ids).empty(); }));
}

TEST_F(EventCommandsTest, AnUrgentStopEndsThemAtOnce) {
  std::atomic<bool> is_urgent{false};
  EventCommandOptions slow = options("echo started; trap '' TERM; sleep 600");
  slow.should_end = [&] { return is_urgent.load(); };
  EventCommands commands(slow);
  commands.tell({.name = "checkpoint"});
  commands.tell({.name = "end"});
  EXPECT_TRUE(comes_true([&] { return text_of("logs/callbacks.log") == "started\n"; }));
  is_urgent = true;
  const double start_s = monotonic_seconds();
  commands.finish();
  EXPECT_LT(monotonic_seconds() - start_s, 1);
  EXPECT_EQ(text_of("logs/callbacks.log"), "started\n");  // and no second one
}

TEST_F(EventCommandsTest, SignalsThatTheRunIgnoresStayIgnored) {
  ::signal(SIGHUP, SIG_IGN);   // nohup
  ::signal(SIGPIPE, SIG_IGN);  // a run's own
  {
    EventCommands commands(options("kill -HUP $$; echo still here; kill -PIPE $$; echo not here"));
    commands.tell({.name = "end"});
  }
  ::signal(SIGHUP, SIG_DFL);
  ::signal(SIGPIPE, SIG_DFL);
  EXPECT_EQ(text_of("logs/callbacks.log"), "still here\n");
}

TEST_F(EventCommandsTest, TheCommandIsNoRankAndHasNoOpenFiles) {
  ::setenv("RANK", "3", 1);
  ::setenv("WORLD_SIZE", "4", 1);
  {
    const MappedFile open(fs::path("/proc/self/exe"));
    EventCommands commands(
        options("echo \"rank ${RANK-none} of ${WORLD_SIZE-none}\"; "
                "for fd in 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$fd ] && echo $fd; "
                "done; true"));
    commands.tell({.name = "end"});
  }
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
  EXPECT_EQ(text_of("logs/callbacks.log"), "rank none of none\n");
}

TEST_F(EventCommandsTest, WithoutACommandNothingIsWritten) {
  EventCommands commands(options(""));
  commands.tell({.name = "end"});
  commands.finish();
  EXPECT_FALSE(fs::exists(directory_ / "logs"));
}

}  // namespace
}  // namespace sftrun::launch
