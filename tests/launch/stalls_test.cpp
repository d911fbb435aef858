// Which workers the others wait for.
#include "supervised_run.h"

namespace sftrun::launch::testing {
namespace {

bool says(const SupervisedRun& run, const std::string& text) {
  return eventually([&] { return run.err().find(text) != std::string::npos; }, 60);
}

TEST(Stalls, TheRankAtFaultIsNamedWithItsStack) {
  SupervisedRun run(4);
  run.options.stall_s = 1;
  run.start({"*:wait all_reduce", "3:work 1580"});
  ASSERT_TRUE(says(run, "stack of rank 3")) << run.err();
  const std::string text = run.err();
  EXPECT_NE(text.find("warning: no progress for "), std::string::npos) << text;
  EXPECT_NE(text.find("rank 3 has been in the data loader for "), std::string::npos) << text;
  EXPECT_NE(text.find(" (step 1580); ranks 0-2 wait in all-reduce\n"), std::string::npos) << text;
  EXPECT_NE(text.find("sleep"), std::string::npos) << text;
  EXPECT_NE(run.log(3).find("stack of rank 3"), std::string::npos) << run.log(3);
  EXPECT_EQ(run.log(0).find("stack of rank"), std::string::npos) << run.log(0);
}

TEST(Stalls, AStoppedRankIsNamed) {
  SupervisedRun run(2);
  run.options.stall_s = 1;
  const std::string pids = run.file("pids").string();
  run.start({"0:wait all_reduce", "1:pid " + pids + "; wait all_reduce"});
  ASSERT_TRUE(eventually([&] { return pids_in(pids).size() == 1; }));
  const pid_t stopped = pids_in(pids)[0];
  ::kill(stopped, SIGSTOP);
  ASSERT_TRUE(says(run, "rank 1 is stopped by a signal (SIGSTOP)")) << run.err();
  EXPECT_TRUE(says(run, "kill -CONT " + std::to_string(stopped))) << run.err();
}

TEST(Stalls, LongWorkOfAllRanksIsNoStall) {
  SupervisedRun run(2);
  run.options.stall_s = 0.4;
  run.start({"*:work 3"});
  sleep_s(3);
  EXPECT_EQ(run.err().find("no progress"), std::string::npos) << run.err();
}

TEST(Stalls, AReportDoesNotEndTheRun) {
  SupervisedRun run(2);
  run.options.stall_s = 0.5;
  run.start({"0:wait barrier", "1:work 9"});
  ASSERT_TRUE(says(run, "rank 1 has been in the data loader")) << run.err();
  ASSERT_TRUE(eventually([&] { return count_of(run.err(), "no progress for") >= 2; }, 60));
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 75);
}

// The error that ends the run is another rank's; it says who kept that rank waiting.
TEST(Stalls, TheErrorNamesTheRankThatWasWaitedFor) {
  SupervisedRun run(3);
  run.options.stall_s = 0.5;
  run.start(
      {"0:wait all_reduce", "1:sleep 4; lose_peer 5 3 all_reduce failed: timed out", "2:work 4"});
  EXPECT_EQ(run.wait(), 5);
  const std::string text = run.err();
  EXPECT_NE(text.find("error: training failed; first failure on rank 1"), std::string::npos)
      << text;
  EXPECT_NE(text.find("\n  before that there was no progress: "), std::string::npos) << text;
}

}  // namespace
}  // namespace sftrun::launch::testing
