#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace sftrun::test {

/// tests/reward/programs/server.py
class JudgeServer {
 public:
  explicit JudgeServer(const std::string& way) {
    int ends[2];
    if (::pipe(ends) != 0) ADD_FAILURE() << "no pipe";
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::close(ends[0]);
      const std::string command = "exec python3 " SFTRUN_REWARD_PROGRAMS "/server.py " + way;
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    FILE* out = ::fdopen(ends[0], "r");
    if (std::fscanf(out, "%d", &port_) != 1) ADD_FAILURE() << "the server does not start";
    std::fclose(out);
  }
  ~JudgeServer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  JudgeServer(const JudgeServer&) = delete;

  /// @param path "/rewards"
  std::string url(const std::string& path = "/rewards") const {
    return "http://127.0.0.1:" + std::to_string(port_) + path;
  }

 private:
  pid_t pid_ = 0;
  int port_ = 0;
};

}  // namespace sftrun::test
