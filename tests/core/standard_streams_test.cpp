#include "sftrun/core/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "support/temporary_directory.h"

namespace sftrun {
namespace {

/// Runs `body` in a process of its own.   @return its exit code
int in_child(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// The error of a write to standard output; "" if there is none.
std::string output_error(const std::function<void()>& write) {
  try {
    write();
    return {};
  } catch (const DeviceError& error) {
    return error.what();
  }
}

TEST(StandardStreams, FilesDoNotGetTheNumbersOfClosedOnes) {
  EXPECT_EQ(in_child([] {
              for (const int fd : {0, 1, 2}) ::close(fd);
              open_standard_streams();
              const int file = ::open("/dev/zero", O_RDONLY);
              char byte = 0;
              const bool is_right = file > 2 && ::read(0, &byte, 1) == 0 &&  // the end
                                    ::write(1, "x", 1) < 0 && ::write(2, "x", 1) == 1;
              return is_right ? 0 : 1;
            }),
            0);
}

TEST(StandardStreams, WhatIsOpenStays) {
  EXPECT_EQ(in_child([] {
              ::close(1);
              const int before = ::fcntl(2, F_GETFL);
              open_standard_streams();
              return ::fcntl(2, F_GETFL) == before && ::fcntl(1, F_GETFD) >= 0 ? 0 : 1;
            }),
            0);
}

TEST(StandardStreams, AResultThatCannotBeWrittenIsAnError) {
  const auto fails = [](const char* reason, const std::function<void()>& make_it_fail,
                        const std::function<void()>& write) {
    return in_child([&] {
      ::signal(SIGPIPE, SIG_IGN);
      make_it_fail();
      const std::string error = output_error(write);
      return error.find(reason) != std::string::npos &&
                     error.find("at   standard output") != std::string::npos
                 ? 0
                 : 1;
    });
  };
  const auto full = [] { ::dup2(::open("/dev/full", O_WRONLY), 1); };
  const auto closed = [] {
    ::close(1);
    open_standard_streams();
  };
  const auto broken = [] {
    int ends[2];
    if (::pipe(ends) == 0) ::dup2(ends[1], 1), ::close(ends[0]);
  };
  const auto by_stdio = [] {
    std::puts("result");
    require_standard_output();
  };
  const auto directly = [] { write_standard_output("result\n"); };
  const auto long_ago = [] {  // stdio has given up what it held
    std::puts("result");
    std::fflush(stdout);
    require_standard_output();
  };
  for (const auto& write : {std::function<void()>(by_stdio), std::function<void()>(directly)}) {
    EXPECT_EQ(fails("No space left on device", full, write), 0);
    EXPECT_EQ(fails("standard output is closed", closed, write), 0);
    EXPECT_EQ(fails("Broken pipe", broken, write), 0);
  }
  EXPECT_EQ(fails("could not be written", full, long_ago), 0);
}

TEST(StandardStreams, WrittenTextIsNoError) {
  const test::TemporaryDirectory dir;
  const std::string file = (dir / "out").string();
  EXPECT_EQ(in_child([&] {
              ::dup2(::open(file.c_str(), O_WRONLY | O_CREAT, 0644), 1);
              std::fputs("first ", stdout);
              write_standard_output("second\n");
              require_standard_output();
              return 0;
            }),
            0);
  EXPECT_EQ(read_text_file(file), "first second\n");
}

TEST(StandardStreams, AStopEndsTheWaitForAReader) {
  EXPECT_EQ(in_child([] {
              int ends[2];
              if (::pipe(ends) != 0) return 1;
              ::dup2(ends[1], 1);
              try {
                write_standard_output(std::string(1 << 20, 'x'), [] { return 75; });
              } catch (const Error& error) {
                return static_cast<int>(error.code());
              }
              return 1;
            }),
            75);
}

TEST(AtomicFile, AnOpenFileIsWrittenThroughItsLink) {
  const test::TemporaryDirectory dir;
  const std::string file = (dir / "out").string();
  EXPECT_EQ(in_child([&] {
              ::dup2(::open(file.c_str(), O_WRONLY | O_CREAT, 0644), 9);
              const char* before = "before\n";
              if (::write(9, before, 7) != 7) return 1;
              write_file_atomically("/proc/self/fd/9", "after\n", SpecialFile::kAllowed);
              return 0;
            }),
            0);
  EXPECT_EQ(read_text_file(file), "before\nafter\n");
}

}  // namespace
}  // namespace sftrun
