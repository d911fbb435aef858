#include "sftrun/core/console_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "sftrun/core/clock.h"
#include "sftrun/core/file.h"
#include "support/temporary_directory.h"

namespace sftrun {
namespace {

/// A pipe that holds 4 KiB, and what was read from it.
struct ConsolePipe {
  ConsolePipe() {
    EXPECT_EQ(::pipe(ends), 0);
    ::fcntl(ends[1], F_SETPIPE_SZ, 4096);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  ~ConsolePipe() {
    for (const int fd : ends) ::close(fd);
  }
  void fill() {
    ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
    while (::write(ends[1], "x", 1) == 1) {
    }
    ::fcntl(ends[1], F_SETFL, 0);
  }
  std::string read_now() {
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(got));
    return text;
  }
  /// Reads until the writer has written everything.
  std::string read_all(ConsoleWriter& writer) {
    std::string text;
    while (!writer.flush(0.01)) text += read_now();
    return text + read_now();
  }
  int ends[2] = {-1, -1};
};

TEST(ConsoleWriter, TextsStayInOrder) {
  ConsolePipe pipe;
  // A pipe of one page with a byte in it counts as full for poll.
  ::fcntl(pipe.ends[1], F_SETPIPE_SZ, 1 << 16);
  ConsoleWriter writer({.patience_s = 20});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(writer.write(pipe.ends[1], std::to_string(i) + "\n"));
  EXPECT_TRUE(writer.write(pipe.ends[1], {.lines = "line\n", .before = "<", .after = ">"}));
  EXPECT_EQ(pipe.read_now(), "0\n1\n2\n3\n4\n<line\n>");  // no flush was needed
}

TEST(ConsoleWriter, NobodyWaitsForAPipeThatNobodyReads) {
  ConsolePipe pipe;
  pipe.fill();
  ConsoleWriter writer;
  const double begin_s = monotonic_seconds();
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(writer.write(pipe.ends[1], "a line\n"));
  EXPECT_TRUE(writer.is_late());
  EXPECT_LT(monotonic_seconds() - begin_s, 10);  // twice that if each waited for its patience
  EXPECT_FALSE(writer.flush(0.05));
  const std::string text = pipe.read_all(writer);
  EXPECT_EQ(text.size(), 4096 + 1000 * std::string("a line\n").size());
  EXPECT_FALSE(writer.is_late());
}

TEST(ConsoleWriter, AFileLosesNothing) {
  const test::TemporaryDirectory dir;
  const int file = ::open((dir / "log").c_str(), O_WRONLY | O_CREAT, 0644);
  ConsoleWriter writer({.max_bytes = 1000, .patience_s = 20});
  std::string expected;
  for (int i = 0; i < 2000; ++i) {  // ten times what the buffer holds
    expected += "a line\n";
    EXPECT_TRUE(writer.write(file, {.lines = "a line\n", .waits = false}));
  }
  EXPECT_TRUE(writer.flush());
  ::close(file);
  EXPECT_EQ(read_text_file(dir / "log"), expected);
}

TEST(ConsoleWriter, AFullBufferDropsLinesAndSaysHowMany) {
  ConsolePipe pipe;
  pipe.fill();
  ConsoleWriter writer({.max_bytes = 10});
  EXPECT_TRUE(writer.write(pipe.ends[1], "first\n"));
  EXPECT_FALSE(
      writer.write(pipe.ends[1], {.lines = "two\nlines\n", .before = {}, .after = "view"}));
  EXPECT_FALSE(writer.write(pipe.ends[1], "a third\n"));
  EXPECT_EQ(pipe.read_all(writer).substr(4096), "first\n");  // the note has no room either
  ConsoleWriter larger({.max_bytes = 100});
  pipe.fill();
  EXPECT_TRUE(larger.write(pipe.ends[1], "first\n"));
  EXPECT_FALSE(larger.write(pipe.ends[1], std::string(200, '\n')));
  EXPECT_EQ(pipe.read_all(larger).substr(4096),
            "first\nwarning: 200 lines dropped here, because nobody read the console\n");
}

TEST(ConsoleWriter, TheNoteComesBeforeTheNextLine) {
  ConsolePipe pipe;
  ConsoleWriter writer({.max_bytes = 100});
  EXPECT_FALSE(writer.write(pipe.ends[1], std::string(200, '\n')));
  EXPECT_TRUE(writer.write(pipe.ends[1], {.lines = "next\n", .before = "<"}));
  EXPECT_EQ(pipe.read_all(writer),
            "<warning: 200 lines dropped here, because nobody read the console\nnext\n");
}

TEST(ConsoleWriter, ADescriptorThatDoesNotBlockLosesNothing) {
  ConsolePipe pipe;
  pipe.fill();
  ::fcntl(pipe.ends[1], F_SETFL, O_NONBLOCK);  // as some programs leave the terminal
  ConsoleWriter writer;
  writer.write(pipe.ends[1], "kept\n");
  EXPECT_EQ(pipe.read_all(writer).substr(4096), "kept\n");
}

TEST(ConsoleWriter, AClosedPipeEndsNothing) {
  ConsolePipe pipe;
  ::close(pipe.ends[0]);
  ConsoleWriter writer;
  EXPECT_TRUE(writer.write(pipe.ends[1], "lost\n"));  // and no SIGPIPE
  EXPECT_TRUE(writer.flush());
  pipe.ends[0] = ::open("/dev/null", O_RDONLY);
}

TEST(ConsoleWriter, AForkedProcessHasItsOwn) {
  ConsolePipe pipe;
  ConsoleWriter::of_process().write(pipe.ends[1], "parent\n");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ConsoleWriter::of_process().write(pipe.ends[1], "child\n");
    ::_exit(ConsoleWriter::of_process().flush() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pipe.read_now(), "parent\nchild\n");
}

}  // namespace
}  // namespace sftrun
