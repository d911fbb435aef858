#include "failure.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace sftrun::launch {
namespace {

int exited(int code) {
  return code << 8;
}  // as waitpid encodes it

WorkerEnd end_of(int rank, int wait_status, double time) {
  return {.rank = rank,
          .local_rank = rank,
          .pid = 100 + rank,
          .wait_status = wait_status,
          .time = time,
          .log = "logs/rank-" + std::to_string(rank) + ".log"};
}

WorkerError error_at(double time, bool peer_lost = false, int exit_code = 5) {
  return {.time = time, .message = "error: bad", .exit_code = exit_code, .peer_lost = peer_lost};
}

TEST(FirstFailure, NoneIfAllAreDoneOrStopped) {
  EXPECT_EQ(
      first_failure({end_of(0, exited(0), 1), end_of(1, exited(75), 1), end_of(2, exited(130), 1)}),
      nullptr);
}

TEST(FirstFailure, EarliestByErrorFileElseByTimeOfDetection) {
  std::vector<WorkerEnd> ends = {end_of(0, exited(5), 9), end_of(1, SIGSEGV, 7),
                                 end_of(2, exited(0), 1)};
  EXPECT_EQ(first_failure(ends)->rank, 1);
  ends[0].error = error_at(6.5);  // noticed last, failed first
  EXPECT_EQ(first_failure(ends)->rank, 0);
}

TEST(FirstFailure, ALostPeerIsNeverTheCauseWhileThereIsAnother) {
  std::vector<WorkerEnd> ends = {end_of(0, exited(5), 5), end_of(1, SIGKILL, 7)};
  ends[0].error = error_at(5, /*peer_lost=*/true);
  EXPECT_EQ(first_failure(ends)->rank, 1);
  ends.pop_back();
  EXPECT_EQ(first_failure(ends)->rank, 0);
}

TEST(FirstFailure, NotAWorkerThatWasToldToEnd) {
  std::vector<WorkerEnd> ends = {end_of(0, SIGTERM, 5), end_of(1, exited(1), 6)};
  ends[0].was_asked_to_stop = true;
  EXPECT_EQ(first_failure(ends)->rank, 1);
}

TEST(FirstFailure, TheOriginalErrorComesBeforeItsConsequences) {
  std::vector<WorkerEnd> ends = {end_of(0, SIGTERM, 6), end_of(1, exited(5), 5.2)};
  ends[0].was_asked_to_stop = true;  // by the launcher, when rank 1 had ended
  ends[0].error = error_at(5);
  ends[1].error = error_at(5.1, /*peer_lost=*/true);
  EXPECT_EQ(first_failure(ends)->rank, 0);
  ends[0].error->peer_lost = true;
  EXPECT_EQ(first_failure(ends)->rank, 1);
}

TEST(DescribeFailure, NamesRankCausePlaceAndOtherRanks) {
  WorkerEnd end = end_of(1, exited(5), 5);
  end.error = error_at(5);
  end.error->step = 17;
  end.error->message = "error: CUDA out of memory\n  at   linear\n  fix: lower train.batch_size";
  end.last_lines = {"step 16", "step 17"};
  EXPECT_STREQ(describe_failure(end, {0, 2, 3}, 0.42).what(),
               "error: training failed; first failure on rank 1 (local_rank 1, pid 101) at step "
               "17: CUDA out of memory\n"
               "  last lines of its log:\n    | step 16\n    | step 17\n"
               "  at   linear; logs/rank-1.log; ranks 0, 2, 3 were stopped 0.4 s later\n"
               "  fix: lower train.batch_size");
}

TEST(DescribeFailure, UsesTheLastStatusWithoutAStep) {
  WorkerEnd end = end_of(0, SIGKILL, 5);
  end.last_status = Status{.phase = Phase::kEvaluating, .step = 40, .total_steps = 100};
  EXPECT_STREQ(
      describe_failure(end, {}, 0).what(),
      "error: training failed; first failure on rank 0 (local_rank 0, pid 100) while "
      "evaluating, after step 40: killed by SIGKILL (Killed)\n"
      "  at   logs/rank-0.log\n"
      "  fix: see the log; the same command resumes from the last checkpoint, if there is one");
  end.last_status = Status{.phase = Phase::kLoading};
  EXPECT_NE(describe_failure(end, {}, 0).message().find("pid 100) while loading: killed"),
            std::string::npos);
}

TEST(DescribeFailure, StackTracesAreLeftToTheLog) {
  WorkerEnd end = end_of(0, exited(5), 5);
  end.last_lines = {"step 1",
                    "[12:03:04.118] [debug] CUDA error: an illegal memory access",
                    "    Exception raised from f at a.cpp:1 (most recent call first):",
                    "    frame #0: c10::Error::Error() + 0x80 (0x7f in libc10.so)",
                    "frame #1: main + 0x1",
                    "error: LibTorch: CUDA error: an illegal memory access"};
  const std::string text = describe_failure(end, {}, 0).what();
  EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
  EXPECT_EQ(text.find("Exception raised"), std::string::npos) << text;
  EXPECT_NE(text.find("): LibTorch: CUDA error: an illegal memory access\n"), std::string::npos);
  EXPECT_NE(text.find("    | step 1\n"), std::string::npos) << text;
}

TEST(DescribeFailure, TheErrorIsNotRepeatedAsTheEndOfTheLog) {
  WorkerEnd end = end_of(0, exited(5), 5);
  end.last_lines = {"step 1", "error: the loss is not finite", "  at   data.jsonl"};
  EXPECT_STREQ(describe_failure(end, {}, 0).what(),
               "error: training failed; first failure on rank 0 (local_rank 0, pid 100): the loss "
               "is not finite\n"
               "  last lines of its log:\n    | step 1\n"
               "  at   data.jsonl; logs/rank-0.log");
}

TEST(DescribeFailure, AWorkerThatWasKilledHasAFix) {
  EXPECT_NE(describe_failure(end_of(1, SIGKILL, 5), {}, 0).fix().find("last checkpoint"),
            std::string::npos);
}

TEST(DescribeFailure, OnlyTheLastLinesOfALongLog) {
  WorkerEnd end = end_of(0, SIGABRT, 5);
  for (int i = 0; i < 30; ++i) end.last_lines.push_back("line " + std::to_string(i) + ".");
  const std::string text = describe_failure(end, {}, 0).what();
  EXPECT_EQ(text.find("line 19."), std::string::npos);
  EXPECT_NE(text.find("| line 20."), std::string::npos);
  EXPECT_NE(text.find("killed by SIGABRT (Aborted)"), std::string::npos);
}

TEST(DescribeFailure, ErrorsOfTheUserKeepTheirCode) {
  WorkerEnd end = end_of(0, exited(3), 5);
  end.error = error_at(5, false, 3);
  end.error->message = "error: bad record\n  at   data.jsonl:7";
  const Error error = describe_failure(end, {1}, 0.1);
  EXPECT_EQ(error.code(), ExitCode::kData);
  EXPECT_STREQ(error.what(), "error: bad record\n  at   data.jsonl:7");
}

TEST(DescribeFailure, TheErrorFilesCodeCountsWhenOurSigtermCameFirst) {
  WorkerEnd end = end_of(0, SIGTERM, 5);
  end.error = error_at(5, false, 2);
  EXPECT_EQ(describe_failure(end, {}, 0).code(), ExitCode::kUsage);
  EXPECT_STREQ(describe_failure(end, {}, 0).what(), "error: bad");
}

TEST(DescribeFailure, AReportOfSeveralErrorsStaysWhole) {
  WorkerEnd end = end_of(0, exited(2), 5);
  end.error = error_at(5, false, 2);
  end.error->message = "error: one\n  at   a:1\nerror: two\n  at   a:2\n  fix: b";
  EXPECT_EQ(describe_failure(end, {}, 0).what(), end.error->message);
}

TEST(DescribeFailure, TheOomKillerIsNamedWithAFix) {
  WorkerEnd end = end_of(1, SIGKILL, 5);
  end.oom_killed = true;
  const Error error = describe_failure(end, {0}, 0.1);
  EXPECT_EQ(error.code(), ExitCode::kOutOfMemory);
  EXPECT_NE(error.message().find("OOM killer took rank 1 (local_rank 1, pid 101)"),
            std::string::npos);
  EXPECT_NE(error.fix().find("train.batch_size"), std::string::npos);
  const Error planned = describe_failure(end, {0}, 0.1, {}, "set train.optimizer=adamw_8bit");
  EXPECT_TRUE(planned.fix().starts_with("set train.optimizer=adamw_8bit; or start fewer workers"))
      << planned.fix();
  const WorkWords of_scores{.name = "score", .less_memory = "shorten the longest records"};
  const Error scoring = describe_failure(end, {0}, 0.1, {}, {}, of_scores);
  EXPECT_TRUE(scoring.fix().starts_with("shorten the longest records; or start fewer workers"))
      << scoring.fix();
}

}  // namespace
}  // namespace sftrun::launch
