#include "sftrun/core/activity.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "sftrun/core/stall.h"

namespace sftrun {
namespace {

void sleep_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST(Activity, TellsWorkWaitAndStep) {
  Activity activity;
  EXPECT_EQ(activity.read().work, Work::kStarting);
  activity.set_step(17);
  {
    const WorkScope loading(&activity, Work::kDataLoader);
    EXPECT_EQ(activity.read().work, Work::kDataLoader);
    const WaitScope wait(&activity, "all_reduce");
    EXPECT_EQ(activity.read().waits_in, "all-reduce");
  }
  const ActivityState state = activity.read();
  EXPECT_EQ(state.work, Work::kStarting);
  EXPECT_EQ(state.waits_in, "");
  EXPECT_EQ(state.step, 17);
  EXPECT_EQ(state.waits_done, 1);
  const WaitScope unknown(&activity, "shutting NCCL down");
  EXPECT_EQ(activity.read().waits_in, "a collective");
}

TEST(Activity, TellsWhichRanksItWaitsFor) {
  Activity activity;
  const int tensor = activity.name_group("tp (ranks 2 and 3)");
  const int shards = activity.name_group("dp_shard (ranks 1 and 3)");
  EXPECT_EQ(activity.name_group("tp (ranks 2 and 3)"), tensor) << "a name that is known";
  EXPECT_NE(shards, tensor);
  const auto waits_in = [&](const char* what, int group) {
    const WaitScope wait(&activity, what, group);
    return activity.read().waits_in;
  };
  EXPECT_EQ(waits_in("all_reduce", tensor), "all-reduce of tp (ranks 2 and 3)");
  EXPECT_EQ(waits_in("all_gather", shards), "all-gather of dp_shard (ranks 1 and 3)");
  EXPECT_EQ(waits_in("all_gather", 0), "all-gather");
}

TEST(Activity, NamesOfGroupsMayBeLongAndMany) {
  Activity activity;
  const int group = activity.name_group("tp " + std::string(1000, 'x'));
  {
    const WaitScope wait(&activity, "barrier", group);
    EXPECT_EQ(activity.read().waits_in, "barrier of tp " + std::string(124, 'x'));
  }
  int last = group;
  for (int i = 0; i < 100; ++i) last = activity.name_group("group " + std::to_string(i));
  EXPECT_EQ(last, 0) << "there is no place for it";
  const WaitScope wait(&activity, "barrier", last);
  EXPECT_EQ(activity.read().waits_in, "barrier");
}

TEST(Activity, AWaitThatFailsIsNotDone) {
  Activity activity;
  try {
    const WaitScope wait(&activity, "barrier");
    throw std::runtime_error("lost");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(activity.read().waits_done, 0);
  EXPECT_EQ(activity.read().waits_in, "");
}

TEST(Activity, CountsWorkWithoutWaits) {
  Activity activity;
  const WorkScope forward(&activity, Work::kForward);
  sleep_ms(30);
  {
    const WaitScope wait(&activity, "all_gather");
    sleep_ms(200);
  }
  const double seconds = activity.seconds_of_works()[static_cast<size_t>(Work::kForward)];
  EXPECT_GE(seconds, 0.03);
  EXPECT_LT(seconds, 0.2);  // the wait would be in it otherwise
}

TEST(Activity, NobodyRecordsWithoutOne) {
  const WorkScope work(nullptr, Work::kForward);
  const WaitScope wait(nullptr, "all_reduce");
}

TEST(Activity, NoOtherMemoryIsTaken) {
  EXPECT_FALSE(Activity::from_descriptor(-1));
  EXPECT_FALSE(Activity::from_descriptor(STDIN_FILENO));
}

/// A function that a stack can name: it is not inlined, and it waits until it is told to go on.
[[gnu::noinline]] void wait_for(const std::atomic<bool>& ends) {
  while (!ends) sleep_ms(1);
}

/// A process with its record, which works at something until it is killed.
class OtherProcess {
 public:
  explicit OtherProcess(bool answers) : pid_(::fork()) {
    if (pid_ != 0) return;
    Activity own = std::move(*Activity::from_descriptor(activity.descriptor()));
    if (answers) own.answer_stack_requests();
    own.set_step(3);
    own.set_work(Work::kBackward);
    const std::atomic<bool> never{false};
    wait_for(never);
    ::_exit(0);
  }
  ~OtherProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  /// @return whether it works within 20 s
  bool works() const {
    for (int i = 0; i < 2000 && activity.read().work != Work::kBackward; ++i) sleep_ms(10);
    return activity.read().work == Work::kBackward;
  }

  Activity activity;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST(Activity, AnotherProcessReadsItAndTheStack) {
  const OtherProcess other(/*answers=*/true);
  ASSERT_TRUE(other.works());
  EXPECT_EQ(other.activity.read().step, 3);
  for (int request = 0; request < 2; ++request) {
    const std::string stack = other.activity.stack(other.pid());
    EXPECT_NE(stack.find("sleep"), std::string::npos) << stack;
    EXPECT_EQ(stack.find("on_stack_request"), std::string::npos) << stack;
  }
  EXPECT_TRUE(other.works()) << "the request has ended it";
}

TEST(Activity, AStoppedProcessGivesNoStack) {
  const OtherProcess other(/*answers=*/true);
  ASSERT_TRUE(other.works());
  ::kill(other.pid(), SIGSTOP);
  ::waitpid(other.pid(), nullptr, WUNTRACED);
  EXPECT_EQ(other.activity.stack(other.pid()), "");
  EXPECT_EQ(other.activity.read().work, Work::kBackward);
}

TEST(Activity, AProcessThatDoesNotAnswerIsLeftAlone) {
  const OtherProcess other(/*answers=*/false);
  ASSERT_TRUE(other.works());
  EXPECT_EQ(other.activity.stack(other.pid()), "");
  EXPECT_EQ(::waitpid(other.pid(), nullptr, WNOHANG), 0) << "the request has ended it";
}

RankView busy(int rank, Work work, double quiet_s, int64_t step = 1580) {
  return {.rank = rank, .state = {.work = work, .waits_in = "", .step = step, .quiet_s = quiet_s}};
}
RankView waiting(int rank, const char* what, double quiet_s, int64_t step = 1580) {
  return {.rank = rank,
          .state = {.work = Work::kBackward, .waits_in = what, .step = step, .quiet_s = quiet_s}};
}

TEST(Stall, NamesTheRankThatDoesNotWait) {
  const auto stall = find_stall({waiting(0, "all-reduce", 42), waiting(1, "all-reduce", 41),
                                 waiting(2, "all-reduce", 40), busy(3, Work::kDataLoader, 42)},
                                30);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->text,
            "rank 3 has been in the data loader for 42 s (step 1580); ranks 0-2 wait in "
            "all-reduce");
  EXPECT_EQ(stall->guilty, std::vector<int>{3});
  EXPECT_EQ(stall->seconds, 42);
}

TEST(Stall, GroupsWhatRanksDo) {
  const auto stall =
      find_stall({busy(0, Work::kSaving, 60, 20), waiting(1, "barrier", 59, 20),
                  busy(2, Work::kForward, 0.1, 20), waiting(3, "reduce-scatter", 31, 20)},
                 30);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->text,
            "rank 2 is in the forward pass (step 20); rank 0 has been writing a checkpoint for 1m "
            "00s (step 20); rank 1 waits in barrier, rank 3 waits in reduce-scatter");
}

TEST(Stall, AStoppedRankIsNamedWhereverItIs) {
  RankView stopped = waiting(1, "all-gather", 35);
  stopped.is_stopped = true;
  const auto stall = find_stall({waiting(0, "all-gather", 34), stopped}, 30);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->text,
            "rank 1 is stopped by a signal (SIGSTOP) in all-gather (step 1580); rank 0 waits in "
            "all-gather");
  const auto alone = find_stall({stopped}, 30);
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->guilty, std::vector<int>{1});
}

TEST(Stall, NoHeartbeatIsNamed) {
  RankView silent{.rank = 1, .is_silent = true};
  const auto stall = find_stall({waiting(0, "barrier", 34, 0), silent}, 30);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->text,
            "rank 1 sends no heartbeat (stopped, or the machine is gone); rank 0 waits in barrier");
}

TEST(Stall, AllThatWaitAreToldApart) {
  const auto stall = find_stall({waiting(0, "all-reduce", 42), waiting(1, "barrier", 42)}, 30);
  ASSERT_TRUE(stall);
  EXPECT_TRUE(stall->guilty.empty());
  EXPECT_EQ(stall->text,
            "every rank has waited for the others for 42 s (step 1580): rank 0 waits in "
            "all-reduce, rank 1 waits in barrier; a connection between them may be broken");
}

TEST(Stall, NothingIsSaidEarly) {
  EXPECT_FALSE(find_stall({waiting(0, "all-reduce", 29), busy(1, Work::kForward, 29)}, 30));
  EXPECT_FALSE(find_stall({waiting(0, "all-reduce", 42), waiting(1, "all-reduce", 2)}, 30));
  EXPECT_FALSE(find_stall({busy(0, Work::kForward, 500), busy(1, Work::kForward, 500)}, 30))
      << "nobody waits: long work of all";
}

TEST(Stall, TheReportComesBeforeTheTimeout) {
  EXPECT_EQ(stall_report_s(30, 1800), 30);
  EXPECT_EQ(stall_report_s(30, 15), 5);
}

TEST(Stall, IsReportedAgainAfterTwiceTheTime) {
  StallReports reports(30);
  EXPECT_FALSE(reports.is_due(29));
  EXPECT_TRUE(reports.is_due(31));
  EXPECT_FALSE(reports.is_due(61));
  EXPECT_TRUE(reports.is_due(62));
  reports.reset();
  EXPECT_TRUE(reports.is_due(30));
}

TEST(Stall, RanksAreNamedInRanges) {
  EXPECT_EQ(name_ranks({3}), "rank 3");
  EXPECT_EQ(name_ranks({0, 1}), "ranks 0 and 1");
  EXPECT_EQ(name_ranks({0, 1, 2}), "ranks 0-2");
  EXPECT_EQ(name_ranks({0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7 and 8");
  EXPECT_EQ(name_ranks({1, 3, 5, 7, 9, 11, 13, 15, 17, 19}),
            "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 2 more");
}

}  // namespace
}  // namespace sftrun
