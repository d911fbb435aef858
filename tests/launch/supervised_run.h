#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "sftrun/core/console_writer.h"
#include "sftrun/core/error.h"
#include "sftrun/launch/supervisor.h"

namespace sftrun::launch::testing {

inline void sleep_s(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Waits until `condition` holds. @return whether it did within the time
template <typename Condition>
bool eventually(Condition condition, double timeout_s = 20) {
  for (const double end = now_s() + timeout_s; now_s() < end; sleep_s(0.01)) {
    if (condition()) return true;
  }
  return condition();
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

inline int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size()))
    ++count;
  return count;
}

/// Running, and not just waiting to be reaped.
inline bool is_alive(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.at(name_end + 2) != 'Z';
}

inline std::vector<pid_t> pids_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::vector<pid_t> pids;
  for (pid_t pid; stream >> pid;) pids.push_back(pid);
  return pids;
}

/// A directory of its own, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "sftrun-launch-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// `supervise` in a process of its own, as `sftrun train` runs it, with workers that follow scripts
/// (test_worker.cpp).
class SupervisedRun {
 public:
  explicit SupervisedRun(int num_workers) {
    options.plan.local_world_size = num_workers;
    options.plan.run_id = "test";
    options.environment = current_environment();
    options.run_dir = directory_.path() / "run";
  }
  ~SupervisedRun() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  void start(std::vector<std::string> scripts) {
    scripts.insert(scripts.begin(), "test-worker");
    options.command = options.restart_command = {SFTRUN_TEST_WORKER, scripts};
    pid_ = ::fork();
    if (pid_ == 0) run_in_child();
  }
  /// @return the exit code, or minus the signal that ended it
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int run(std::vector<std::string> scripts) {
    start(std::move(scripts));
    return wait();
  }

  pid_t pid() const { return pid_; }
  std::filesystem::path file(const std::string& name) const { return directory_.path() / name; }
  std::string out() const { return read_file(file("out")); }
  std::string err() const { return read_file(file("err")); }
  std::string log(int rank) const {
    return read_file(options.run_dir / "logs" / ("rank-" + std::to_string(rank) + ".log"));
  }

  SuperviseOptions options;
  int err_fd = -1;                            ///< stderr of the supervisor, when not the file
  std::function<void()> first_in_child = {};  ///< what the supervisor's process does first

 private:
  [[noreturn]] void run_in_child() {
    if (!std::freopen(file("out").c_str(), "w", stdout)) ::_exit(98);
    if (!std::freopen(file("err").c_str(), "w", stderr)) ::_exit(98);
    if (err_fd >= 0) ::dup2(err_fd, STDERR_FILENO);
    if (first_in_child) first_in_child();
    int code = 0;
    try {
      code = supervise(options).exit_code;
    } catch (const Error& error) {
      ConsoleWriter::of_process().write(STDERR_FILENO, std::string(error.what()) + "\n");
      code = static_cast<int>(error.code());
    }
    ConsoleWriter::of_process().flush(0.2);
    ::_exit(code);
  }

  TemporaryDirectory directory_;
  pid_t pid_ = 0;
};

}  // namespace sftrun::launch::testing
