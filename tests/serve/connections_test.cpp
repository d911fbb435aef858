#include "../../src/serve/connections.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <thread>
#include <utility>

namespace sftrun::serve {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""h;
using State = Connections::State;

/// The two ends of a connection.
struct SocketPair {
  SocketPair() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0); }
  ~SocketPair() {
    for (const int end : ends) ::close(end);
  }
  SocketPair(const SocketPair&) = delete;
  SocketPair& operator=(const SocketPair&) = delete;

  int server() const { return ends[0]; }
  /// Whether the client sees the end of the connection.
  bool is_ended() const {
    char byte = 0;
    return ::recv(ends[1], &byte, 1, MSG_DONTWAIT) == 0;
  }

  std::array<int, 2> ends{};
};

bool is_readable(int descriptor) {
  pollfd polled{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&polled, 1, 0) == 1;
}

/// Two moments of the clock differ.
void pass_time() {
  std::this_thread::sleep_for(2ms);
}

TEST(ConnectionsTest, AreCountedUntilTheyAreRemoved) {
  const SocketPair one, other;
  Connections connections;
  connections.add(one.server());
  connections.add(other.server());
  EXPECT_EQ(connections.size(), 2U);
  connections.remove(one.server());
  connections.remove(one.server());
  connections.set(one.server(), State::kAnswering);
  EXPECT_EQ(connections.size(), 1U) << "what is not there does not come back";
}

TEST(ConnectionsTest, ARemovalWakesWhoeverWaits) {
  const SocketPair one;
  Connections connections;
  EXPECT_FALSE(is_readable(connections.changed()));
  connections.add(one.server());
  EXPECT_FALSE(is_readable(connections.changed()));
  connections.remove(one.server());
  EXPECT_TRUE(is_readable(connections.changed()));
  connections.wake();
  connections.clear();
  EXPECT_FALSE(is_readable(connections.changed())) << "however often it was woken";
  connections.clear();
  connections.wake();
  EXPECT_TRUE(is_readable(connections.changed()));
}

TEST(ConnectionsTest, TheOneThatIsSlowestGivesWay) {
  const SocketPair answered, slow, fast;
  Connections connections;
  for (const SocketPair* pair : {&answered, &slow, &fast}) {
    connections.add(pair->server());
    pass_time();
  }
  connections.set(answered.server(), State::kAnswering);
  connections.end_slowest(1h);
  EXPECT_FALSE(slow.is_ended()) << "patience";
  connections.end_slowest(0ms);
  EXPECT_TRUE(slow.is_ended());
  EXPECT_FALSE(fast.is_ended());
  EXPECT_EQ(connections.size(), 3U) << "until the thread of the connection removes it";
  connections.end_slowest(0ms);
  EXPECT_TRUE(fast.is_ended()) << "one that was ended is passed over";
  connections.end_slowest(0ms);
  EXPECT_FALSE(answered.is_ended()) << "an answer in progress stays";
}

TEST(ConnectionsTest, AChangeOfStateBeginsItsTimeAnew) {
  const SocketPair first, second;
  Connections connections;
  connections.add(first.server());
  pass_time();
  connections.add(second.server());
  pass_time();
  connections.set(first.server(), State::kSending);
  connections.end_slowest(0ms);
  EXPECT_TRUE(second.is_ended());
  EXPECT_FALSE(first.is_ended());
}

TEST(ConnectionsTest, ThoseThatAreLateAreEndedByTheirState) {
  const SocketPair receives, sends, answers;
  Connections connections;
  for (const auto& [pair, state] : {std::pair(&receives, State::kReceiving),
                                    {&sends, State::kSending},
                                    {&answers, State::kAnswering}}) {
    connections.add(pair->server());
    connections.set(pair->server(), state);
  }
  pass_time();
  connections.end_late(1h, 1h);
  EXPECT_FALSE(receives.is_ended() || sends.is_ended());
  connections.end_late(1h, 0ms);
  EXPECT_FALSE(receives.is_ended());
  EXPECT_TRUE(sends.is_ended());
  connections.end_late(0ms, 0ms);
  EXPECT_TRUE(receives.is_ended());
  EXPECT_FALSE(answers.is_ended());
}

TEST(ConnectionsTest, ASocketThatWasClosedElsewhereIsForgotten) {
  Connections connections;
  int closed = -1;
  {
    const SocketPair gone;
    closed = gone.server();
    connections.add(closed);
  }
  connections.end_slowest(0ms);
  EXPECT_EQ(connections.size(), 0U);
  connections.add(closed);
  pass_time();
  connections.end_late(0ms, 0ms);
  EXPECT_EQ(connections.size(), 0U);
}

}  // namespace
}  // namespace sftrun::serve
