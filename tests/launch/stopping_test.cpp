// Signals, and that nothing is left behind.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "supervised_run.h"

namespace sftrun::launch::testing {
namespace {

bool all_training(const SupervisedRun& run, int num_workers) {
  for (int rank = 0; rank < num_workers; ++rank) {
    if (run.log(rank).find("training") == std::string::npos) return false;
  }
  return true;
}

TEST(Stopping, SignalsReachTheWorkersWhichDecideTheCode) {
  for (const auto& [signal, code] :
       {std::pair(SIGINT, 130), {SIGTERM, 75}, {SIGUSR1, 75}, {SIGHUP, 75}}) {
    SupervisedRun run(2);
    run.start({"*:train 0.2"});
    ASSERT_TRUE(eventually([&] { return all_training(run, 2); }));
    ::kill(run.pid(), signal);
    EXPECT_EQ(run.wait(), code);
    for (int rank = 0; rank < 2; ++rank)
      EXPECT_NE(run.log(rank).find("checkpoint written"), std::string::npos);
  }
}

/// A run that was started with signals ignored.
class IgnoredSignals : public ::testing::Test {
 protected:
  void start(std::initializer_list<int> ignored) {
    run_.first_in_child = [ignored = std::vector<int>(ignored)] {
      for (const int signal : ignored) ::signal(signal, SIG_IGN);
    };
    run_.start({"*:train 0"});
    ASSERT_TRUE(eventually([&] { return all_training(run_, 2); }));
  }
  /// Whether the run goes on after a moment.
  bool goes_on() const {
    sleep_s(0.5);
    return is_alive(run_.pid()) && run_.log(0).find("checkpoint written") == std::string::npos;
  }
  SupervisedRun run_{2};
};

TEST_F(IgnoredSignals, OfNohupStayIgnored) {
  start({SIGHUP, SIGUSR1, SIGTSTP});
  for (const int signal : {SIGHUP, SIGUSR1, SIGTSTP}) ::kill(run_.pid(), signal);
  EXPECT_TRUE(goes_on());
  ::kill(run_.pid(), SIGTERM);
  EXPECT_EQ(run_.wait(), 75);
}

TEST_F(IgnoredSignals, AJobInTheBackgroundObeysKill) {  // a shell starts it with SIGINT ignored
  start({SIGINT, SIGQUIT});
  ::kill(run_.pid(), SIGINT);
  EXPECT_EQ(run_.wait(), 130);
}

/// Ctrl-C on the terminal of a run.
class KeyboardTest : public ::testing::TestWithParam<bool> {};

TEST_P(KeyboardTest, CtrlCEndsOnlyWhatIsInTheForeground) {
  const bool is_in_background = GetParam();
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_EQ(::grantpt(master) | ::unlockpt(master), 0);
  SupervisedRun run(2);
  run.first_in_child = [&] {
    ::setsid();
    const int terminal = ::open(::ptsname(master), O_RDWR);  // becomes the controlling one
    ::ioctl(terminal, TIOCSCTTY, 0);
    if (is_in_background) ::signal(SIGINT, SIG_IGN);
  };
  run.start({"*:train 0"});
  ASSERT_TRUE(eventually([&] { return all_training(run, 2); }));
  ASSERT_EQ(::write(master, "\x03", 1), 1);
  if (is_in_background) {
    sleep_s(0.5);
    EXPECT_TRUE(is_alive(run.pid()));
    ::kill(run.pid(), SIGTERM);
  }
  EXPECT_EQ(run.wait(), is_in_background ? 75 : 130);
  ::close(master);
}

INSTANTIATE_TEST_SUITE_P(InTheBackgroundOrNot, KeyboardTest, ::testing::Bool());

TEST(Terminal, IsThatOfTheFirstWorker) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_EQ(::grantpt(master) | ::unlockpt(master), 0);
  SupervisedRun run(2);
  run.options.main_has_terminal = true;
  run.first_in_child = [&] {
    ::setsid();
    const int terminal = ::open(::ptsname(master), O_RDWR);
    ::ioctl(terminal, TIOCSCTTY, 0);
    ::dup2(terminal, STDIN_FILENO);
  };
  run.start({"0:ignore;echo", "1:ignore;echo;print has nothing to read;sleep 1"});
  const auto has_read = [&](const std::string& line) {
    return eventually(
        [&] { return read_file(run.file("out")).find("read " + line) != std::string::npos; });
  };
  ASSERT_EQ(::write(master, "one\n", 4), 4);
  ASSERT_TRUE(has_read("one"));
  ASSERT_EQ(::write(master, "\x03two\n", 5), 5);  // Ctrl-C ends no worker
  EXPECT_TRUE(has_read("two")) << run.out();
  ASSERT_EQ(::write(master, "\x04", 1), 1);  // Ctrl-D
  EXPECT_EQ(run.wait(), 0);
  EXPECT_NE(run.log(1).find("has nothing to read"), std::string::npos);
  ::close(master);
}

TEST(Stopping, AConsoleThatNobodyReadsDelaysNothing) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::fcntl(ends[1], F_SETPIPE_SZ, 4096);
  SupervisedRun run(2);
  run.err_fd = ends[1];
  run.start({"0:flood 20000;train 0", "1:train 0"});  // more than pipe and buffer take
  ASSERT_TRUE(eventually([&] { return all_training(run, 2); }));
  EXPECT_TRUE(eventually([&] { return count_of(run.log(0), "line ") == 20000; }));
  const double begin = now_s();
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 75);
  EXPECT_LT(now_s() - begin, 3);
  EXPECT_NE(run.log(0).find("checkpoint written"), std::string::npos);
  for (const int fd : ends) ::close(fd);
}

TEST(Stopping, RepeatedCopiesOfOneSignalAreOneRequest) {
  SupervisedRun run(2);
  run.start({"*:train 0.3"});
  ASSERT_TRUE(eventually([&] { return all_training(run, 2); }));
  for (int i = 0; i < 5; ++i) ::kill(run.pid(), SIGTERM), sleep_s(0.02);
  EXPECT_EQ(run.wait(), 75);
  EXPECT_NE(run.log(1).find("checkpoint written"), std::string::npos);
}

TEST(Stopping, ASecondSignalStopsAtOnce) {
  SupervisedRun run(2);
  run.start({"*:train 30"});
  ASSERT_TRUE(eventually([&] { return all_training(run, 2); }));
  ::kill(run.pid(), SIGINT);
  sleep_s(0.7);
  const double begin = now_s();
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait(), 130);
  EXPECT_LT(now_s() - begin, 2);
  EXPECT_EQ(run.log(0).find("checkpoint written"), std::string::npos);
  EXPECT_NE(run.err().find("SIGINT again: stopping now"), std::string::npos) << run.err();
}

TEST(Stopping, TheGracePeriodEnds) {
  SupervisedRun run(2);
  run.options.grace_s = 0.3;
  run.start({"0:train 0", "1:train 30"});
  ASSERT_TRUE(eventually([&] { return all_training(run, 2); }));
  const double begin = now_s();
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 75);
  EXPECT_LT(now_s() - begin, 3);
  EXPECT_NE(run.err().find("no progress for 300 ms"), std::string::npos) << run.err();
}

/// Starts a run, stops it, and waits for it.   @return its exit code
int stopped(SupervisedRun& run, int num_workers, const std::vector<std::string>& scripts) {
  run.start(scripts);
  EXPECT_TRUE(eventually([&] { return all_training(run, num_workers); }));
  ::kill(run.pid(), SIGTERM);
  return run.wait();
}

TEST(Stopping, OnTheWayToACheckpointNobodyIsKilled) {
  for (const char* what : {"compute", "save", "change", "device"}) {
    SupervisedRun run(2);
    run.options.grace_s = 0.5;
    EXPECT_EQ(stopped(run, 2, {fmt::format("0:train 1.6 {}", what), "1:train 1.8 collective"}), 75);
    EXPECT_NE(run.log(1).find("checkpoint written"), std::string::npos) << what << run.err();
  }
}

TEST(Stopping, RanksThatAllWaitForEachOtherHang) {
  SupervisedRun run(2);
  run.options.grace_s = 0.5;
  EXPECT_EQ(stopped(run, 2, {"*:train 30 collective"}), 75);
  EXPECT_NE(run.err().find("no progress for 500 ms"), std::string::npos) << run.err();
}

TEST(Stopping, ARankOfAnotherMachineIsWaitedFor) {
  SupervisedRun run(1);
  run.options.grace_s = 0.3;
  run.options.plan.nnodes = 2;
  EXPECT_EQ(stopped(run, 1, {"*:train 1 collective"}), 75);
  EXPECT_NE(run.log(0).find("checkpoint written"), std::string::npos) << run.err();
}

/// The last status is of generating, as before the first step of `sftrun generate`.
TEST(Stopping, WhatWasTrainedBeforeAnEvaluationIsSaved) {
  SupervisedRun run(1);
  run.options.untrained_grace_s = 0.2;
  EXPECT_EQ(stopped(run, 1, {"*:answer 1 compute"}), 75);
  EXPECT_NE(run.log(0).find("checkpoint written"), std::string::npos) << run.err();
}

TEST(Stopping, ASlowCommandOfCallbacksIsNamed) {
  SupervisedRun run(1);
  run.options.grace_s = 0.3;
  run.start({"0:ignore;status 5 9;commands;print training;hang"});
  ASSERT_TRUE(eventually([&] { return all_training(run, 1); }));
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 75);
  EXPECT_NE(run.err().find("stopping when the command of `callbacks` has ended"), std::string::npos)
      << run.err();
  EXPECT_NE(run.err().find("the command of `callbacks` has not ended within 300 ms"),
            std::string::npos)
      << run.err();
}

TEST(Stopping, BeforeTheFirstStepNobodyWaitsForACheckpoint) {
  SupervisedRun run(2);
  run.options.untrained_grace_s = 0.3;
  run.start({"*:ignore;print training;hang"});
  ASSERT_TRUE(eventually([&] { return all_training(run, 2); }));
  const double begin = now_s();
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait(), 130);
  EXPECT_LT(now_s() - begin, 5);
  EXPECT_NE(run.err().find("no step has been trained"), std::string::npos) << run.err();
}

TEST(Stopping, AFailureWhileStoppingIsAFailure) {
  SupervisedRun run(2);
  run.start({"0:train 0.5", "1:ignore;print training;sleep 0.6;fail 5 9 disk full"});
  ASSERT_TRUE(eventually([&] { return all_training(run, 2); }));
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 5);
  EXPECT_NE(run.err().find("at step 9: disk full"), std::string::npos) << run.err();
}

TEST(Stopping, APeerThatStoppedIsNoFailure) {
  SupervisedRun run(2);
  run.start(
      {"0:train 0", "1:ignore;print training;sleep 0.6;lose_peer 5 9 Connection closed by peer"});
  ASSERT_TRUE(eventually([&] { return all_training(run, 2); }));
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 75);
}

TEST(Stopping, DoneBeforeTheSignalTookEffectIsDone) {
  SupervisedRun run(1);
  run.start({"*:ignore;print training;sleep 0.4"});
  ASSERT_TRUE(eventually([&] { return all_training(run, 1); }));
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 0);
}

TEST(Stopping, KeepsTheCodeOfWorkersThatStopByThemselves) {
  SupervisedRun run(2);  // the scheduler signalled the workers, not us
  EXPECT_EQ(run.run({"*:exit 75"}), 75);
}

/// Workers and what they started, all of them up.
class Orphans : public ::testing::Test {
 protected:
  static constexpr size_t kNumProcesses = 4;  // two workers with a child each

  void start() {
    const std::string pid_file = run_.file("pids").string();
    run_.start({"*:spawn " + pid_file + ";pid " + pid_file + ";ignore;hang"});
    ASSERT_TRUE(eventually([&] { return pids_in(run_.file("pids")).size() == kNumProcesses; }));
    for (const pid_t pid : pids_in(run_.file("pids"))) ASSERT_TRUE(is_alive(pid));
  }
  bool all_gone() const {
    constexpr double kLong = 20;  // seconds, on a busy machine
    return eventually(
        [&] {
          for (const pid_t pid : pids_in(run_.file("pids"))) {
            if (is_alive(pid)) return false;
          }
          return true;
        },
        kLong);
  }
  SupervisedRun run_{2};
};

TEST_F(Orphans, NoneAfterKillNineOfTheLauncher) {
  start();
  ::kill(run_.pid(), SIGKILL);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(run_.wait(), -SIGKILL);
}

TEST_F(Orphans, NoneAfterAFailure) {
  run_.options.failure_grace_s = 0.2;
  start();
  // Each worker wrote its child's pid before its own.
  ::kill(pids_in(run_.file("pids")).back(), SIGSEGV);
  EXPECT_EQ(run_.wait(), 5);
  EXPECT_TRUE(all_gone());
}

TEST_F(Orphans, NoneAfterAStop) {
  run_.options.grace_s = 0.2;
  start();
  ::kill(run_.pid(), SIGTERM);
  EXPECT_EQ(run_.wait(), 75);
  EXPECT_TRUE(all_gone());
}

TEST(Stopping, KillsProcessesThatAWorkerLeaves) {
  SupervisedRun run(1);
  EXPECT_EQ(run.run({"*:spawn " + run.file("pids").string()}),
            0);  // done, but its child holds the pipes open
  ASSERT_EQ(pids_in(run.file("pids")).size(), 1u);
  EXPECT_TRUE(eventually([&] { return !is_alive(pids_in(run.file("pids")).front()); }, 3));
}

bool is_stopped(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.at(name_end + 2) == 'T';
}

TEST(Stopping, CtrlZPausesTheWorkersToo) {
  SupervisedRun run(1);
  run.start({"*:pid " + run.file("pid").string() + ";train 0"});
  ASSERT_TRUE(eventually([&] { return all_training(run, 1); }));
  const pid_t worker = pids_in(run.file("pid")).front();
  ::kill(run.pid(), SIGTSTP);
  EXPECT_TRUE(eventually([&] { return is_stopped(run.pid()) && is_stopped(worker); }));
  ::kill(run.pid(), SIGCONT);
  EXPECT_TRUE(eventually([&] { return !is_stopped(worker); }));
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 75);
}

TEST(Stopping, TheLauncherIsSmall) {
  SupervisedRun run(2);
  run.start({"*:train 0"});
  ASSERT_TRUE(eventually([&] { return all_training(run, 2); }));
  std::istringstream status(read_file("/proc/" + std::to_string(run.pid()) + "/status"));
  long resident_kib = 0, num_threads = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) resident_kib = std::stol(line.substr(6));
    if (line.starts_with("Threads:")) num_threads = std::stol(line.substr(8));
  }
  EXPECT_GT(resident_kib, 0);
  EXPECT_LT(resident_kib, 50 * 1024);
#ifndef __SANITIZE_THREAD__   // which has a thread of its own
  EXPECT_LE(num_threads, 2);  // one writes to the console
#endif
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 75);
}

}  // namespace
}  // namespace sftrun::launch::testing
