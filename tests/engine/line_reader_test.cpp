#include "line_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

namespace sftrun::engine {
namespace {

/// Standard input from a pipe, as long as this lives.
class InputPipe {
 public:
  InputPipe() : before_(::dup(STDIN_FILENO)) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    ::dup2(ends[0], STDIN_FILENO);
    ::close(ends[0]);
    writer_ = ends[1];
    std::clearerr(stdin);
  }
  ~InputPipe() {
    close();
    ::dup2(before_, STDIN_FILENO);
    ::close(before_);
    std::clearerr(stdin);
  }
  void write(const std::string& text) const {
    EXPECT_EQ(::write(writer_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void close() {
    if (writer_ >= 0) ::close(std::exchange(writer_, -1));
  }

 private:
  int before_, writer_ = -1;
};

TEST(LineReader, ReadsThePipeLineByLineToItsEnd) {
  InputPipe input;
  input.write("one\ntwo words \r\n\nlast");
  input.close();
  LineReader reader("> ");
  EXPECT_FALSE(reader.is_terminal());
  std::string line;
  for (const char* wanted : {"one", "two words ", "", "last"}) {
    ASSERT_EQ(reader.read(line), LineReader::End::kLine);
    EXPECT_EQ(line, wanted);
  }
  EXPECT_EQ(reader.read(line), LineReader::End::kEnd);
  EXPECT_EQ(reader.read(line), LineReader::End::kEnd);
}

TEST(LineReader, ASignalInterruptsALineAndTheNextIsRead) {
  InputPipe input;
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};  // without SA_RESTART, as the program's own
  ::sigaction(SIGUSR1, &action, &before);
  std::atomic<bool> has_returned{false};
  const pthread_t reads = ::pthread_self();
  std::thread interrupts([&] {
    while (!has_returned) {
      ::pthread_kill(reads, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  LineReader reader("> ");
  std::string line;
  EXPECT_EQ(reader.read(line), LineReader::End::kInterrupted);
  has_returned = true;
  interrupts.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  input.write("next\n");
  EXPECT_EQ(reader.read(line), LineReader::End::kLine);
  EXPECT_EQ(line, "next");
}

}  // namespace
}  // namespace sftrun::engine
