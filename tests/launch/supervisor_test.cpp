#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "sftrun/core/log.h"
#include "supervised_run.h"

namespace sftrun::launch::testing {
namespace {

TEST(Supervisor, AllWorkersDone) {
  SupervisedRun run(3);
  EXPECT_EQ(run.run({"*:print hello"}), 0);
  EXPECT_EQ(run.out(), "[rank 0] hello\n");  // the others are quiet
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(run.log(rank), "hello\n");
}

TEST(Supervisor, OneWorkerNeedsNoPrefix) {
  SupervisedRun run(1);
  EXPECT_EQ(run.run({"*:print hello;stderr [12:03:04.118] [info] loaded"}), 0);
  EXPECT_EQ(run.out(), "hello\n");
  EXPECT_EQ(run.err(), "[12:03:04.118] [info] loaded\n");
}

TEST(Supervisor, WorkersGetTorchrunsEnvironment) {
  SupervisedRun run(2);
  run.options.plan.nnodes = 2;
  run.options.plan.node_rank = 1;
  run.options.plan.master_addr = "node-a";
  run.options.plan.master_port = 12345;
  run.options.plan.threads_per_worker = 7;
  run.options.environment.erase("OMP_NUM_THREADS");
  EXPECT_EQ(
      run.run({"3:env RANK;env LOCAL_RANK;env WORLD_SIZE;env LOCAL_WORLD_SIZE;env GROUP_RANK;env "
               "NODE_RANK;"
               "env MASTER_ADDR;env MASTER_PORT;env TORCHELASTIC_RUN_ID;env OMP_NUM_THREADS"}),
      0);
  EXPECT_EQ(run.log(3), "3\n1\n4\n2\n1\n1\nnode-a\n12345\ntest\n7\n");
}

TEST(Supervisor, AUsersThreadCountStays) {
  SupervisedRun run(1);
  run.options.environment["OMP_NUM_THREADS"] = "3";
  EXPECT_EQ(run.run({"*:env OMP_NUM_THREADS"}), 0);
  EXPECT_EQ(run.log(0), "3\n");
}

TEST(Supervisor, AWarningAboutTheRunIsShownOnce) {
  const std::string warning = "stderr [12:03:04.118] [warning] about the run";
  SupervisedRun run(2);
  EXPECT_EQ(run.run({"*:" + warning + ";" + warning}), 0);
  EXPECT_EQ(run.err(), "[12:03:04.118] [warning] about the run\n");
  EXPECT_EQ(run.log(1),
            "[12:03:04.118] [warning] about the run\n"
            "[12:03:04.118] [warning] about the run\n");
}

TEST(Supervisor, DoesNotRepeatWarningsOfTheLauncher) {
  log::warn("known to the launcher");
  SupervisedRun run(1);
  EXPECT_EQ(run.run({"0:stderr [12:03:04.118] [warning] known to the launcher"}), 0);
  EXPECT_EQ(run.err(), "");
}

TEST(Supervisor, WarningsOfEveryRankAreShown) {
  SupervisedRun run(2);
  EXPECT_EQ(run.run({"1:stderr [12:03:04.118] [info] [rank 1] quiet;stderr [12:03:04.118] "
                     "[warning] [rank 1] loud;"
                     "stderr chatter;stderr [W123 socket.cpp] cannot connect"}),
            0);
  EXPECT_EQ(run.err(),
            "[12:03:04.118] [warning] [rank 1] loud\n[rank 1] [W123 socket.cpp] cannot connect\n");
}

TEST(Supervisor, ACrashEndsTheRunAndIsNamed) {
  SupervisedRun run(3);
  const double begin = now_s();
  EXPECT_EQ(run.run({"1:print about to crash;sleep 0.1;raise 11", "*:train 0"}), 5);
  EXPECT_LT(now_s() - begin, 3);
  const std::string text = run.err();
  EXPECT_NE(text.find("error: training failed; first failure on rank 1 (local_rank 1, pid "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("killed by SIGSEGV"), std::string::npos) << text;
  EXPECT_NE(text.find("| about to crash"), std::string::npos) << text;
  EXPECT_NE(text.find("logs/rank-1.log; ranks 0, 2 were stopped 0."), std::string::npos) << text;
}

TEST(Supervisor, AWorkerThatIgnoresSigtermIsKilled) {
  SupervisedRun run(2);
  run.options.failure_grace_s = 0.3;
  const double begin = now_s();
  EXPECT_EQ(run.run({"0:ignore;hang", "1:sleep 0.2;exit 1"}), 5);
  EXPECT_LT(now_s() - begin, 3);
  EXPECT_NE(run.err().find("rank 1 (local_rank 1, pid "), std::string::npos) << run.err();
  EXPECT_NE(run.err().find("exited with code 1"), std::string::npos) << run.err();
}

TEST(Supervisor, ACrashIsReportedBeforeALostPeer) {
  SupervisedRun run(3);
  // Rank 0 fails first, but only because a peer was gone; rank 2's end is noticed later (it dumped
  // its core, say).
  EXPECT_EQ(
      run.run({"0:sleep 0.1;lose_peer 5 17 no answer", "2:ignore;sleep 0.4;raise 11", "1:train 0"}),
      5);
  EXPECT_NE(run.err().find("first failure on rank 2 "), std::string::npos) << run.err();
}

TEST(Supervisor, TheCauseIsNamedThoughTheDiskIsFull) {
  SupervisedRun run(2);
  // Neither can write its error file, and the one that lost its peer ends first.
  EXPECT_EQ(run.run({"0:lose_disk;ignore;sleep 0.4;fail 5 3 cannot write: No space left on device",
                     "1:lose_disk;sleep 0.1;lose_peer 5 3 no answer"}),
            5);
  EXPECT_NE(run.err().find("first failure on rank 0 "), std::string::npos) << run.err();
  EXPECT_NE(run.err().find("at step 3: cannot write: No space left on device"), std::string::npos)
      << run.err();
}

TEST(Supervisor, AnErrorFileSaysStepMessageAndFix) {
  SupervisedRun run(2);
  EXPECT_EQ(run.run({"1:fail 5 17 disk full", "*:train 0"}), 5);
  const std::string text = run.err();
  EXPECT_NE(text.find(") at step 17: disk full\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  at   somewhere; "), std::string::npos) << text;
  EXPECT_NE(text.find("  fix: do something\n"), std::string::npos) << text;
}

TEST(Supervisor, TheUsersErrorsArePassedThroughOnce) {
  for (const int code : {2, 3, 4}) {
    SupervisedRun run(4);
    EXPECT_EQ(run.run({"*:fail " + std::to_string(code) + " 0 no such model"}), code);
    EXPECT_EQ(run.err(), "error: no such model\n  at   somewhere\n  fix: do something\n");
  }
}

TEST(Supervisor, AnErrorWithoutAFileIsReadFromTheLog) {
  SupervisedRun run(2);
  EXPECT_EQ(run.run({"1:stderr error: wrong key;stderr   at   a.yaml:1:2;exit 2", "*:train 0"}), 2);
  EXPECT_NE(run.err().find("error: wrong key\n"), std::string::npos) << run.err();
  EXPECT_EQ(count_of(run.err(), "wrong key"), 1) << run.err();
}

TEST(Supervisor, AProgramThatCannotStartIsOneClearError) {
  SupervisedRun broken(2);
  broken.options.command = {"/nonexistent/worker", {"worker"}};
  try {
    supervise(broken.options);
    FAIL() << "started a program that does not exist";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kWorkerFailed);
    EXPECT_NE(std::string(error.what()).find("No such file or directory"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("/nonexistent/worker"), std::string::npos)
        << error.what();
  }
}

TEST(Supervisor, RestartsFromTheLastCheckpointThenGivesUp) {
  SupervisedRun run(2);
  run.options.max_restarts = 1;
  EXPECT_EQ(run.run({"1:env TORCHELASTIC_RESTART_COUNT;once;fail 5 3 flaky", "0:sleep 0.3"}), 0);
  EXPECT_EQ(run.log(1), "0\nerror: flaky\n  at   somewhere\n  fix: do something\n1\n");
  EXPECT_NE(run.err().find("restart 1 of 1, from the last checkpoint"), std::string::npos)
      << run.err();

  SupervisedRun hopeless(2);
  hopeless.options.max_restarts = 2;
  EXPECT_EQ(hopeless.run({"1:print again;fail 5 3 broken", "0:hang"}), 5);
  EXPECT_EQ(count_of(hopeless.log(1), "again"), 3);
}

TEST(Supervisor, ErrorsOfTheUserAreNotRetried) {
  SupervisedRun run(1);
  run.options.max_restarts = 3;
  EXPECT_EQ(run.run({"*:print once more;fail 2 0 wrong key"}), 2);
  EXPECT_EQ(count_of(run.log(0), "once more"), 1);
}

TEST(Supervisor, WorkersAreBoundToTheirCpus) {
  const std::vector<int> allowed = allowed_cpus();
  SupervisedRun run(1);
  run.options.plan.cpus = {{allowed.back()}};
  run.start({"*:pid " + run.file("pid").string() + ";hang"});
  ASSERT_TRUE(eventually([&] { return !pids_in(run.file("pid")).empty(); }));
  const std::string status =
      read_file("/proc/" + std::to_string(pids_in(run.file("pid")).front()) + "/status");
  EXPECT_NE(status.find("Cpus_allowed_list:\t" + std::to_string(allowed.back()) + "\n"),
            std::string::npos)
      << status;
}

/// A terminal of the test's own.
struct Terminal {
  Terminal(unsigned short columns) : master(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    ::grantpt(master);
    ::unlockpt(master);
    slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
    winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ::ioctl(slave, TIOCSWINSZ, &size);
  }
  ~Terminal() {
    ::close(master);
    ::close(slave);
  }
  std::string read_all() const {
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = ::read(master, buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(got));
    return text;
  }
  int master, slave;
};

TEST(Supervisor, DrawsALiveViewOnATerminalAndHidesStepLines) {
  ::setenv("TERM", "xterm", 1);
  const Terminal terminal(80);
  SupervisedRun run(1);
  run.err_fd = terminal.slave;
  EXPECT_EQ(run.run({"*:status 17 200;sleep 0.3;stderr [12:03:04.118] [info] [rank 0] step 17/200 "
                     "loss 1.5 lr 1e-4;"
                     "stderr [12:03:04.118] [info] [rank 0] saved;sleep 0.3"}),
            0);
  const std::string text = terminal.read_all();
  const std::string live = "training [=>                  ] 17/200  loss 1.5000  1234 tok/s";
  EXPECT_NE(text.find(live), std::string::npos) << text;
  EXPECT_NE(text.find("\x1b[1A\r\x1b[J[12:03:04.118] [info] [rank 0] saved\r\n" + live),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("step 17/200"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with(live + "\r\n")) << text;  // it stays
  EXPECT_NE(run.log(0).find("step 17/200"), std::string::npos);
}

TEST(Supervisor, WithoutATerminalStepLinesAreShownOnce) {
  SupervisedRun run(1);
  EXPECT_EQ(
      run.run(
          {"*:status 17 200;stderr [12:03:04.118] [info] [rank 0] step 17/200 loss 1.5 lr 1e-4"}),
      0);
  EXPECT_EQ(run.err(), "[12:03:04.118] [info] [rank 0] step 17/200 loss 1.5 lr 1e-4\n");
}

}  // namespace
}  // namespace sftrun::launch::testing
