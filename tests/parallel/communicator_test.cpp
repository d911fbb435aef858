#include "sftrun/parallel/communicator.h"

#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/parallel/agreement.h"
#include "sftrun/parallel/grad_reducer.h"
#include "sftrun/parallel/mesh_groups.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/temporary_directory.h"

// Ranks as threads over a store on the loopback.
namespace sftrun::parallel {
namespace {

using launch::pick_free_port;

void spawn(int world_size, const std::function<void(Communicator&)>& body) {
  test::run_ranks(world_size, body);
}

class Ranks : public ::testing::TestWithParam<int> {};
class SeveralRanks : public Ranks {};

TEST_P(Ranks, SumGatherBarrierAndBroadcast) {
  const int n = GetParam();
  spawn(n, [n](Communicator& comm) {
    for (const int64_t size : {1, 4, 1000, 100000}) {
      const at::Tensor values = at::arange(size, at::kFloat) + comm.rank();
      comm.world().all_reduce_async(values);
      comm.world().wait_all();
      EXPECT_TRUE(at::equal(values, at::arange(size, at::kFloat) * n + n * (n - 1) / 2));
    }
    const at::Tensor own = at::tensor({static_cast<double>(comm.rank()), 2.0}, at::kDouble),
                     all = comm.all_gather_tensor(own);
    ASSERT_EQ(all.size(0), comm.world_size());
    for (int64_t rank = 0; rank < all.size(0); ++rank)
      EXPECT_TRUE(at::equal(all[rank], at::tensor({static_cast<double>(rank), 2.0}, at::kDouble)));
    const auto gathered = comm.all_gather({static_cast<double>(comm.rank()), 0.5});
    ASSERT_EQ(gathered.size(), static_cast<size_t>(n));
    for (int rank = 0; rank < n; ++rank) EXPECT_EQ(gathered[static_cast<size_t>(rank)][0], rank);
    comm.barrier("here");
    EXPECT_EQ(comm.broadcast("word", comm.rank() == 0 ? "yes" : "no"), "yes");
    EXPECT_EQ(comm.counts().all_reduce.calls, n == 1 ? 0 : 4);
  });
}

TEST_P(SeveralRanks, ABarrierEndsWhenARankAbandonsTheRun) {
  const int n = GetParam();
  std::atomic<int> ended{0};
  spawn(n, [&](Communicator& comm) {
    if (comm.rank() == n - 1) {
      comm.abandon("out of luck\nstack trace");
    } else {
      try {
        comm.barrier("end");
        ADD_FAILURE() << "the barrier opened";
      } catch (const CommError& error) {
        EXPECT_EQ(error.message(), "rank " + std::to_string(n - 1) + " failed: out of luck");
      }
    }
    ++ended;
    while (comm.rank() == 0 && ended < n) std::this_thread::yield();  // it hosts the store
  });
}

// The others have come to the end, and may still be asking the store about it.
TEST_P(Ranks, TheHostOfTheStoreLeavesLast) {
  std::atomic<int> leaving = 0;
  spawn(GetParam(), [&](Communicator& comm) {
    if (comm.rank() > 0) {
      comm.barrier("end");
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      ++leaving;
    }
    comm.leave();
    if (comm.rank() == 0) {
      EXPECT_EQ(leaving, comm.world_size() - 1);
    }
  });
}

// The buffer is summed whatever the bucket size, from the last unit to the first.
TEST_P(Ranks, GradReducerSumsEveryUnitOnce) {
  const int n = GetParam();
  for (const int64_t cap : {int64_t{1}, int64_t{200}, int64_t{1} << 20}) {
    spawn(n, [n, cap](Communicator& comm) {
      const at::Tensor grad = at::arange(100, at::kFloat);
      GradReducer reducer(comm.world(), grad, {{0, 10}, {10, 10}, {10, 60}, {60, 100}}, cap);
      for (int64_t unit = 3; unit >= 0; --unit) reducer.unit_ready(unit);
      reducer.finish();
      EXPECT_TRUE(at::equal(grad, at::arange(100, at::kFloat) * n));
      if (n > 1 && cap == 1) {
        EXPECT_EQ(comm.counts().all_reduce.calls, 3);
      }
      if (n > 1 && cap > 1000) {
        EXPECT_EQ(comm.counts().all_reduce.calls, 1);
      }
    });
  }
}

// As torch's bf16_compress_hook: gradients and their sums are rounded, half the bytes are sent.
TEST_P(Ranks, GradReducerSendsBf16) {
  const int n = GetParam();
  spawn(n, [n](Communicator& comm) {
    const at::Tensor own = at::arange(100, at::kFloat) * 1.001F * (comm.rank() + 1),
                     grad = own.clone();
    GradReducer reducer(comm.world(), grad, {{0, 40}, {40, 100}}, 1 << 20, at::kBFloat16);
    for (int64_t unit = 1; unit >= 0; --unit) reducer.unit_ready(unit);
    reducer.finish();
    at::Tensor expected = at::zeros({100});
    for (int rank = 1; rank <= n; ++rank)
      expected += (at::arange(100, at::kFloat) * 1.001F * rank).to(at::kBFloat16).to(at::kFloat);
    if (n == 1) {
      EXPECT_TRUE(at::equal(grad, own)) << "nothing is sent";
      return;
    }
    EXPECT_TRUE(at::allclose(grad, expected, 1.0 / 128, 0));
    EXPECT_TRUE(at::equal(grad, grad.to(at::kBFloat16).to(at::kFloat)));
    EXPECT_EQ(comm.counts().all_reduce.bytes, 200U);
  });
}

// Parts of a tensor, and what a tensor is after each collective of all ranks.
TEST_P(Ranks, TensorCollectives) {
  const int n = GetParam();
  spawn(n, [n](Communicator& comm) {
    Group& world = comm.world();
    const at::Tensor part = at::full({3}, comm.rank(), at::kByte),
                     all = at::zeros({3 * n}, at::kByte);
    world.all_gather_into(all, part);
    for (int rank = 0; rank < n; ++rank)
      EXPECT_TRUE(at::equal(all.narrow(0, 3 * rank, 3), at::full({3}, rank, at::kByte)));
    const at::Tensor in = at::arange(2 * n, at::kFloat) * (comm.rank() + 1), out = at::zeros({2});
    world.reduce_scatter_into(out, in);
    EXPECT_TRUE(at::equal(
        out, at::arange(2 * n, at::kFloat).narrow(0, 2 * comm.rank(), 2) * (n * (n + 1) / 2)));
    const at::Tensor word = at::full({5}, comm.rank() == n - 1 ? 7 : 0, at::kFloat);
    world.broadcast(word, n - 1);
    EXPECT_TRUE(at::equal(word, at::full({5}, 7.0F)));
    const CollectiveCounts& counts = comm.counts();
    const int64_t called = n == 1 ? 0 : 1;
    EXPECT_EQ(counts.all_gather.calls, called);
    EXPECT_EQ(counts.all_gather.bytes, static_cast<uint64_t>(3 * called));
    EXPECT_EQ(counts.reduce_scatter.bytes, static_cast<uint64_t>(8 * n * called));
    EXPECT_EQ(counts.broadcast.bytes,
              comm.rank() == n - 1 ? static_cast<uint64_t>(20 * called) : 0U);
  });
}
TEST_P(Ranks, ADisagreementIsTheSameOnAllRanks) {
  const int n = GetParam();
  spawn(n, [n](Communicator& comm) {
    const auto none = find_disagreement(comm, "a", "x", [](const std::string&) { return "?"; });
    EXPECT_FALSE(none);
    const std::string value = comm.rank() == n - 1 ? "other" : "x";
    const auto one = find_disagreement(comm, "b", n == 1 ? "x" : value, [&](const std::string& of) {
      return value + " instead of " + of + std::string(1000, '.');
    });
    EXPECT_EQ(one.has_value(), n > 1);
    if (!one) return;
    EXPECT_EQ(one->rank, n - 1);
    EXPECT_EQ(one->what.find("other instead of x..."), 0U) << one->what;
    EXPECT_EQ(one->what.size(), 500U);
  });
}
INSTANTIATE_TEST_SUITE_P(World, Ranks, ::testing::Values(1, 2, 4));
INSTANTIATE_TEST_SUITE_P(World, SeveralRanks, ::testing::Values(2, 4));

// Two groups of two communicate at the same time, and their ranks with each other.
TEST(Communicator, RanksShareNumbers) {
  std::vector<int64_t> taken(30);  // by each rank, in turns that it chooses itself
  spawn(3, [&](Communicator& comm) {
    for (int i = 0; i < 10; ++i) {
      const int64_t number = comm.add("taken", 1);
      ++taken.at(static_cast<size_t>(number - 1));
    }
    comm.barrier("all have taken");
    EXPECT_EQ(comm.add("taken", 0), 30);
    EXPECT_EQ(comm.add("another", 0), 0);
    comm.leave();
  });
  EXPECT_EQ(taken, std::vector<int64_t>(30, 1));
  Communicator alone;
  EXPECT_EQ(alone.add("taken", 5), 5);
  EXPECT_EQ(alone.add("taken", 2), 7);
}

TEST(Communicator, GroupsOfSomeRanks) {
  spawn(4, [](Communicator& comm) {
    const int first = comm.rank() / 2 * 2;
    Group pair;
    for (const int begin : {0, 2}) {
      Group made = comm.make_group({begin, begin + 1}, "pair " + std::to_string(begin));
      if (begin == first) pair = made;
    }
    EXPECT_EQ(pair.size(), 2);
    EXPECT_EQ(pair.rank(), comm.rank() % 2);
    const at::Tensor sum = at::full({4}, comm.rank(), at::kFloat);
    pair.all_reduce(sum);
    EXPECT_TRUE(at::equal(sum, at::full({4}, 2.0F * static_cast<float>(first) + 1)));
    const at::Tensor message = at::full({2}, comm.rank(), at::kFloat);
    if (pair.rank() == 0) {
      pair.send(message, 1);
    } else {
      pair.receive(message, 0);
      EXPECT_TRUE(at::equal(message, at::full({2}, static_cast<float>(first))));
    }
    EXPECT_EQ(comm.counts().all_reduce.calls, 1);
    EXPECT_EQ(comm.counts().all_reduce.bytes, 16U);
    EXPECT_EQ(comm.counts().send.calls, pair.rank() == 0 ? 1 : 0);
    EXPECT_EQ(comm.counts().recv.bytes, pair.rank() == 0 ? 0U : 8U);
    // A rank that is not in a group has one of its own.
    Group none = comm.make_group({0, 1}, "again");
    EXPECT_EQ(none.size(), comm.rank() < 2 ? 2 : 1);
    comm.leave();
  });
}

TEST(Communicator, APeerThatGoesAwayIsACommError) {
  spawn(2, [](Communicator& comm) {
    comm.all_gather({1.0});
    if (comm.rank() == 1) return;  // its connections close
    EXPECT_THROW(
        {
          comm.world().all_reduce_async(at::ones({1000}));
          comm.world().wait_all();
        },
        CommError);
  });
}

TEST(Communicator, AnErrorNamesTheAxis) {
  spawn(4, [](Communicator& comm) {
    MeshGroups groups(comm, {{.dp_shard = 2, .tp = 2}, comm.rank()});
    Group tensor = groups.along({Axis::kTp});
    comm.barrier("connected");     // none leaves while another one still connects
    if (comm.rank() != 2) return;  // its connections close
    try {
      tensor.all_reduce(at::ones({1000}));
      ADD_FAILURE() << "the other rank has left";
    } catch (const CommError& error) {
      EXPECT_EQ(error.where(), "rank 2 of 4, gloo, tp (ranks 2 and 3)");
    }
  });
}

TEST(Communicator, NobodyThereIsACommErrorThatNamesTheAddress) {
  const int port = pick_free_port();
  try {
    Communicator::connect({1, 2, "127.0.0.1", port}, "gloo", at::kCPU, {.timeout_s = 1});
    FAIL() << "connected to nobody";
  } catch (const CommError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("nothing listens there"), std::string::npos) << text;
    EXPECT_NE(text.find("127.0.0.1:" + std::to_string(port)), std::string::npos) << text;
  }
}

/// The text of the CommError, of which LibTorch's C++ frames are no part.
std::string failure(const std::function<void()>& call) {
  const std::string text = test::error_of<CommError>(call);
  EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
  EXPECT_EQ(text.find(".cpp"), std::string::npos) << text;
  return text;
}

TEST(Rendezvous, AnUnknownNameIsToldSoon) {
  const std::string text = failure([] {
    Communicator::connect({1, 2, "no-such-host.invalid", 29500}, "gloo", at::kCPU,
                          {.timeout_s = 100, .unreachable_s = 0.5});
  });
  EXPECT_NE(text.find("rank 1 cannot reach rank 0"), std::string::npos) << text;
  EXPECT_NE(text.find("no-such-host.invalid:29500"), std::string::npos) << text;
  EXPECT_NE(text.find("--master-addr"), std::string::npos) << text;
}

TEST(Rendezvous, TheHostDoesNotKnowItsName) {
  const std::string text = failure([] {
    Communicator::connect({0, 2, "no-such-host.invalid", pick_free_port(), false}, "gloo", at::kCPU,
                          {.timeout_s = 100, .unreachable_s = 0.5});
  });
  EXPECT_NE(text.find("rank 0 cannot resolve its own address"), std::string::npos) << text;
  EXPECT_NE(text.find("--master-addr"), std::string::npos) << text;
}

/// As behind an address translation, or with the address of another machine (here of nobody,
/// RFC 5737): LibTorch would try for a minute to reach it.
TEST(Rendezvous, TheHostDoesNotAskItselfAtAnAddressOfOthers) {
  const auto start = std::chrono::steady_clock::now();
  const std::string text = failure([] {
    Communicator::connect({0, 2, "192.0.2.1", pick_free_port(), false}, "gloo", at::kCPU,
                          {.timeout_s = 1});
  });
  EXPECT_NE(text.find("rank 1 of 2 did not join"), std::string::npos) << text;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Rendezvous, RanksThatDoNotComeAreNamed) {
  disable_flight_recorder();
  const int port = pick_free_port();
  test::TestThreads ranks;
  for (const int rank : {0, 2}) {
    ranks.start([port, rank] {
      const std::string text = failure([port, rank] {
        Communicator::connect({rank, 5, "127.0.0.1", port}, "gloo", at::kCPU, {.timeout_s = 1.5});
      });
      EXPECT_NE(text.find("ranks 1, 3 and 4 of 5 did not join"), std::string::npos) << text;
    });
  }
  ranks.join();
}

TEST(Rendezvous, AStopEndsTheWaitAtOnce) {
  const int port = pick_free_port();
  for (const int rank : {0, 1}) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(Communicator::connect({rank, 2, "127.0.0.1", port}, "gloo", at::kCPU,
                                       {.timeout_s = 60, .stop_requested = [] { return true; }}),
                 StoppedWaiting);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  }
}

/// What the log says while ranks run `body`, then meet in a barrier.
class StallLog {
 public:
  std::string of(int world_size, const std::function<void(Communicator&)>& body) {
    disable_flight_recorder();
    log::configure({.console = log::Level::kOff, .file = file_});
    const int port = pick_free_port();
    test::TestThreads ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      ranks.start([&, rank] {
        Communicator comm =
            Communicator::connect({rank, world_size, "127.0.0.1", port}, "gloo", at::kCPU,
                                  {.timeout_s = 60, .stall_s = 1.5, .beat_s = 0.3});
        comm.activity().set_step(7 + rank);
        comm.activity().set_work(Work::kDataLoader);
        body(comm);
        comm.barrier("end");
      });
    }
    ranks.join();
    log::configure({.console = log::Level::kOff});
    return read_text_file(file_);
  }

  /// Holds the calling rank up until the log says every text; on a loaded machine the first reports
  /// may come before every rank has told what it does.
  void hold_up_until_it_says(const std::vector<std::string>& texts) const {
    using std::chrono::steady_clock;
    const auto last = steady_clock::now() + std::chrono::seconds(40);
    while (!says(texts) && steady_clock::now() < last)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }

 private:
  bool says(const std::vector<std::string>& texts) const {
    const std::string log = read_text_file(file_);
    return std::all_of(texts.begin(), texts.end(), [&](const std::string& text) {
      return log.find(text) != std::string::npos;
    });
  }

  const test::TemporaryDirectory dir_;
  const std::filesystem::path file_ = dir_ / "log";
};

TEST(StallWatch, NamesTheRankThatTheOthersWaitFor) {
  const std::vector<std::string> texts = {"rank 2 has been in the data loader for ",
                                          " (step 9); ranks 0 and 1 wait in barrier"};
  StallLog stalls;
  const std::string log = stalls.of(3, [&](Communicator& comm) {
    if (comm.rank() == 2) stalls.hold_up_until_it_says(texts);
  });
  for (const std::string& text : texts) EXPECT_NE(log.find(text), std::string::npos) << log;
  EXPECT_EQ(log.find("[rank 1] no progress"), std::string::npos) << "only the lowest rank says it\n"
                                                                 << log;
}

TEST(StallWatch, NobodyIsNamedWhereTheRanksMove) {
  EXPECT_EQ(StallLog().of(3, [](Communicator&) {}), "");
}

TEST(StallWatch, NamesTheAxesOfTheRanksThatWait) {
  const std::vector<std::string> texts = {
      "rank 3 has been in the data loader for ",
      "rank 2 waits in all-reduce of tp (ranks 2 and 3)",
      "rank 0 waits in all-gather of dp_shard (ranks 0 and 2)",
      "rank 1 waits in all-gather of dp_shard (ranks 1 and 3)",
  };
  StallLog stalls;
  const std::string log = stalls.of(4, [&](Communicator& comm) {
    MeshGroups groups(comm, {{.dp_shard = 2, .tp = 2}, comm.rank()});
    Group tensor = groups.along({Axis::kTp});
    Group shards = groups.along({Axis::kPp, Axis::kDpShard});
    comm.barrier("connected");
    if (comm.rank() == 3) stalls.hold_up_until_it_says(texts);
    tensor.all_reduce(at::ones({4}));
    shards.all_gather_into(at::ones({8}), at::ones({4}));
  });
  for (const std::string& text : texts) EXPECT_NE(log.find(text), std::string::npos) << log;
}

constexpr const char* kPortOfStopped = "SFTRUN_TEST_PORT";

/// Rank 0 of the test below, in a process of its own. ctest does not list it.
TEST(StallWatch, RankThatIsStopped) {
  const char* port = std::getenv(kPortOfStopped);
  if (port == nullptr) GTEST_SKIP() << "a part of NamesTheHostWhenItIsStopped";
  Communicator comm = Communicator::connect({0, 2, "127.0.0.1", std::atoi(port)}, "gloo", at::kCPU,
                                            {.timeout_s = 60});
  comm.barrier("begin");
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

pid_t start_rank_to_be_stopped(int port) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  for (const char* of_gtest : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX", "GTEST_OUTPUT"})
    ::unsetenv(of_gtest);
  ::setenv(kPortOfStopped, std::to_string(port).c_str(), 1);
  ::execl("/proc/self/exe", "rank", "--gtest_filter=StallWatch.RankThatIsStopped", nullptr);
  ::_exit(127);
}

TEST(StallWatch, NamesTheHostWhenItIsStopped) {
  const test::TemporaryDirectory dir;
  log::configure({.console = log::Level::kOff, .file = dir / "log"});
  const int port = pick_free_port();
  const pid_t host = start_rank_to_be_stopped(port);
  {
    Communicator comm = Communicator::connect(
        {1, 2, "127.0.0.1", port}, "gloo", at::kCPU,
        {.timeout_s = 12, .unreachable_s = 60, .stall_s = 0.5, .beat_s = 0.2, .answer_s = 1});
    comm.activity().set_step(7);
    comm.barrier("begin");
    ::kill(host, SIGSTOP);
    EXPECT_THROW(comm.barrier("end"), CommError);  // after timeout_s, not never
  }
  ::kill(host, SIGKILL);
  ::waitpid(host, nullptr, 0);
  log::configure({.console = log::Level::kOff});
  const std::string log = read_text_file(dir / "log");
  EXPECT_NE(log.find("rank 0 sends no heartbeat"), std::string::npos) << log;
  EXPECT_NE(log.find("rank 1 waits in barrier (step 7)"), std::string::npos) << log;
}

/// A program that listens on the loopback and answers nothing.
struct SilentProgram {
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  int port = 0;
  SilentProgram() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(fd, 8), 0);
    EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port = ntohs(address.sin_port);
  }
  ~SilentProgram() { ::close(fd); }
};

TEST(Rendezvous, AnotherProgramAtThePortIsTold) {
  const SilentProgram other;
  const std::string text = failure([&] {
    Communicator::connect({1, 2, "127.0.0.1", other.port}, "gloo", at::kCPU,
                          {.timeout_s = 100, .first_answer_s = 1});
  });
  EXPECT_NE(text.find("rank 1 got no answer from the program that listens there"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("--master-port"), std::string::npos) << text;
}

TEST(Rendezvous, APortInUseIsNamed) {
  const SilentProgram other;
  const int port = other.port;
  const std::string text = failure([port] {
    Communicator::connect({0, 2, "127.0.0.1", port}, "gloo", at::kCPU, {});
  });
  EXPECT_NE(text.find("port " + std::to_string(port) + " is already in use"), std::string::npos);
}

/// Addresses on which a socket of this machine listens to `port`, as /proc/net/tcp and tcp6 have
/// them (RFC 793's state LISTEN is 0A there).
std::vector<std::string> listening_on(int port) {
  std::vector<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (state == "0A" && colon != std::string::npos &&
          std::stoi(local.substr(colon + 1), nullptr, 16) == port)
        found.push_back(local.substr(0, colon));
    }
  }
  return found;
}

TEST(Rendezvous, ListensOnTheLoopbackAlone) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const int port = pick_free_port();
    test::TestThreads other;
    other.start([&] {
      Communicator::connect({1, 2, host, port}, "gloo", at::kCPU, {.timeout_s = 30}).barrier("a");
    });
    Communicator comm =
        Communicator::connect({0, 2, host, port}, "gloo", at::kCPU, {.timeout_s = 30});
    const auto addresses = listening_on(port);
    comm.barrier("a");
    other.join();
    ASSERT_EQ(addresses.size(), 1U) << host;
    EXPECT_TRUE(addresses[0] == "0100007F" || addresses[0] == "00000000000000000000000001000000")
        << addresses[0];
  }
}

TEST(Calls, EndTheRestOfRanksOneByOne) {
  std::atomic<int> num_calls{0};
  spawn(3, [&](Communicator& comm) {
    for (int call = 1; call <= 2; ++call) {
      if (comm.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        num_calls = call;
        comm.call();
      } else {
        comm.await_call(0);
        EXPECT_GE(num_calls, call);
      }
    }
    comm.barrier("end of calls");
  });
}

// Those who wait for a rank that makes no progress are reported after a while.
TEST(Calls, ARankThatRestsWaitsForNobody) {
  std::atomic<bool> has_seen{false}, rests{false};
  spawn(2, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      const Activity& activity = comm.activity();
      std::jthread watch([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        rests = activity.read().waits_in.empty();
        has_seen = true;
      });
      comm.await_call(0);
    } else {
      while (!has_seen) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      comm.call();
    }
  });
  EXPECT_TRUE(rests);
}

TEST(Calls, ARankThatRestsHearsOfAFailure) {
  spawn(2, [](Communicator& comm) {
    if (comm.rank() == 1) return comm.abandon("out of luck");
    test::expect_error<CommError>([&] { comm.await_call(1); }, {"rank 1 failed: out of luck"});
  });
}

/// What rank 0 of a run on several machines logs, and where it listens.
std::pair<std::string, std::vector<std::string>> several_machines_at(const char* host) {
  const test::TemporaryDirectory dir;
  log::configure({.console = log::Level::kOff, .file = dir / "log"});
  const int port = pick_free_port();
  test::TestThreads other;
  other.start([&] {
    Communicator::connect({1, 2, host, port, false}, "gloo", at::kCPU, {.timeout_s = 30})
        .barrier("a");
  });
  std::vector<std::string> addresses;
  {
    Communicator comm =
        Communicator::connect({0, 2, host, port, false}, "gloo", at::kCPU, {.timeout_s = 30});
    addresses = listening_on(port);
    comm.barrier("a");
    other.join();
  }
  log::configure({.console = log::Level::kOff});
  return {read_text_file(dir / "log"), addresses};
}

// Several launchers on one machine
TEST(Rendezvous, TheLoopbackInDigitsIsMeant) {
  const auto [log, addresses] = several_machines_at("127.0.0.1");
  EXPECT_EQ(log, "");
  EXPECT_EQ(addresses, std::vector<std::string>{"0100007F"});
}

// A Kubernetes job gives its master this name, and the other pods the master's.
TEST(Rendezvous, LocalhostOfSeveralMachinesIsHeardByAll) {
  const auto [log, addresses] = several_machines_at("localhost");
  EXPECT_NE(log.find("on all interfaces, because localhost is the loopback address"),
            std::string::npos)
      << log;
  ASSERT_EQ(addresses.size(), 1U);
  EXPECT_EQ(addresses[0].find_first_not_of('0'), std::string::npos) << addresses[0];
}

}  // namespace
}  // namespace sftrun::parallel
